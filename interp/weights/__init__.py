"""What weights alone say: head weights of any checkpoint, their circuits, metrics and nulls."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
