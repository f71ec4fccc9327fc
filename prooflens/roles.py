"""Roles: their registry, the rows on which they are tested, and the rule that decides them."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
