"""Figures, drawn from tables and arrays in one style."""
