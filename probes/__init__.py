"""Measurement against proof: probes, controls, and the decision about roles."""
