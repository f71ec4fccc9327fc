"""Tasks with known latents, which models are trained on."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
