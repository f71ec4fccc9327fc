"""The papers' claims as experiments, with verdicts by rules that were written beforehand."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
