"""Models: one hooked transformer for every task, baselines, and ways to load or wrap other
models."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
