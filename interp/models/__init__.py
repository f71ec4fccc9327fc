"""Who learns it: one hooked transformer for every task, baselines, and the door to other models."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
