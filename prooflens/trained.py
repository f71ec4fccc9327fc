"""The shipped models, the recipes they were trained by, and the trainer."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
