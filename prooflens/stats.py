"""Statistics: nulls, p-values and false discovery."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
