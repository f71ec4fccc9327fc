"""Detectors, which turn evidence into tests: one file for each family of roles."""
