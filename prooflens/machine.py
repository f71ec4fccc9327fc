"""The machine: devices, threads, cores, and the versions that a result was made with."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
