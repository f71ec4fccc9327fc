"""For other packages: stores as sources of activations for SAELens.

TransformerLens needs no conversion: models of this package are of its kind, and stores return its
``ActivationCache`` (:meth:`interp.store.ActivationStore.cache`). Models are exported by
:func:`interp.models.export.export`.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
