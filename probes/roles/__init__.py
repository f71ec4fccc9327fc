"""Decide which role each head, FFN and layer plays; behaviour and cause must agree."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
