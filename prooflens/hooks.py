"""Hooks: TransformerLens' bridge and head detector, and a model put in evaluation mode."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
