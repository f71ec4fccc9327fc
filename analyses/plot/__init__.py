"""Figures: of tables and arrays (:mod:`interp.figures`), and straight from a model."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
