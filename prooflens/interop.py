"""To and from other people's tools: tables as Parquet, stores as Hugging Face data sets and as
sources of activations for SAELens, roles as a circuit.

TransformerLens needs nothing of this: our models are its own kind, and stores hand out its
``ActivationCache`` (:meth:`interp.store.ActivationStore.cache`). Models go out with
:func:`interp.models.export.export`.
"""

from interp.interop import (
    activation_batches,
    circuit_of_roles,
    hugging_face_dataset,
    read_parquet,
    write_circuit,
    write_parquet,
)

__all__ = [
    "activation_batches",
    "circuit_of_roles",
    "hugging_face_dataset",
    "read_parquet",
    "write_circuit",
    "write_parquet",
]
