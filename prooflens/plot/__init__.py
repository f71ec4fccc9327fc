"""Figures: of tables and arrays (:mod:`interp.figures`), and straight from a model."""

from interp.lazy import lazy
from prooflens.plot.in_notebooks import show_figures

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
show_figures()
