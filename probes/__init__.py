"""Measurement against proof: probes, controls, and the decision about roles."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
