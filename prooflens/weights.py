"""What can be read from weights alone: circuits, scores and their nulls."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
