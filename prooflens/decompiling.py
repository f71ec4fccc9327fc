"""From a model back to a program: its rows, the search, and the judgement of the result."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
