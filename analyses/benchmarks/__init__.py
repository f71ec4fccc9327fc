"""Benchmarks: how fast the product is, and how often what it says is right."""
