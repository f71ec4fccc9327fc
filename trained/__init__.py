"""How the shipped models came to be, and the models."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
