"""From a model back to a program: the rows it is asked on, the search, and its judgement."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
