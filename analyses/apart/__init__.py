"""Measurements written apart, with nothing of prooflens: what its answers are held against."""
