"""Errors: one line each, with argument, rule, value received and what to do."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
