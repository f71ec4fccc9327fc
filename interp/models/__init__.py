"""Models: one hooked transformer for every task, baselines, and ways to load or wrap other
models."""
