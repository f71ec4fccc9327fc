"""Where heads look: attention by lag and by key set, on given, shuffled and repeated rows."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
