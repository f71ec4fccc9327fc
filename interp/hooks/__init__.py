"""Hooks: their names, where they sit in a model, capturing activations, and checking the hooks."""
