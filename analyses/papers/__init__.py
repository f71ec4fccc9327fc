"""The papers' claims as experiments: one module a family, verdicts by rules written beforehand."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
