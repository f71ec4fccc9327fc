"""To other people's tools: stores as sources of activations for SAELens.

TransformerLens needs nothing of this: our models are its own kind, and stores hand out its
``ActivationCache`` (:meth:`interp.store.ActivationStore.cache`). Models go out with
:func:`interp.models.export.export`.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
