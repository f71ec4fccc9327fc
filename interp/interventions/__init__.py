"""Interventions: ablation, patching, path patching, and rerunning a model with changed
activations."""
