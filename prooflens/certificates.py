"""Proved bounds: domains, strategies, and the check of a certificate."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
