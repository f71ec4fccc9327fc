"""Attention as a sum of score terms, then a normaliser."""
