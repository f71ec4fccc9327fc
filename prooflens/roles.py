"""Roles: which there are, on what rows they are judged, and what decides."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
