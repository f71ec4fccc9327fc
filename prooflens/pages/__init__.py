"""Pages: named tables and figures as one self-contained HTML file."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
