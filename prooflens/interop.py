"""To and from other people's tools: tables as Parquet, stores as Hugging Face data sets and as
sources of activations for SAELens, roles as a circuit.

TransformerLens needs nothing of this: our models are its own kind, and stores hand out its
``ActivationCache`` (:meth:`interp.store.ActivationStore.cache`). Models go out with
:func:`interp.models.hugging_face.export`.
"""

from interp.interop.activations import activation_batches
from interp.interop.circuit import circuit_of_roles, write_circuit
from interp.interop.hugging_face_rows import hugging_face_dataset
from interp.interop.parquet import read_parquet, write_parquet

__all__ = [
    "activation_batches",
    "circuit_of_roles",
    "hugging_face_dataset",
    "read_parquet",
    "write_circuit",
    "write_parquet",
]
