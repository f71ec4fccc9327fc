"""Why it can be done: the papers' constructions as models."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
