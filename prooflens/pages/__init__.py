"""Pages: named tables and pictures as one HTML file that needs nothing besides."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
