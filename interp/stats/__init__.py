"""Statistics: nulls, p-values, false discovery, bootstrap intervals, head tables."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
