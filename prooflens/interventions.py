"""Interventions: ablation, patching, path patching, and losses without a component."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
