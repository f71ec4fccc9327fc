"""The papers' constructive proofs, built as models with known mechanisms and error bounds."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
