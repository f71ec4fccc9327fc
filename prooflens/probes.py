"""Probes, controls, exchange between rows, and agreement of a model with a proof."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
