"""Where heads attend: by lag and by kind of key, on given, shuffled and repeated rows."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
