"""Probes, controls, roles of heads, and agreement of a model with a proof."""
