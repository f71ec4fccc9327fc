"""Interventions: ablation, patching, path patching, and rerunning a model with changed
activations."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
