"""Models: specs, what is built from them, baselines, and models of other people."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
