"""A model's run on some rows: places, edits, metrics, and by how much a metric gets worse."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
