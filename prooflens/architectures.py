"""Models: specs, the models built from them, baselines, and models of other packages."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
