"""Activation stores: a model's activations on disk, in HDF5.

Reading needs NumPy, h5py and pydantic only. PyTorch and TransformerLens are imported when something
is extracted, or when a store is read back as tensors.
"""

from __future__ import annotations

from interp.store.extract import extract, plan_extraction
from interp.store.reader import ActivationStore, RowBatch
from interp.store.verify import Fault, repair, verify

__all__ = [
    "ActivationStore",
    "Fault",
    "RowBatch",
    "extract",
    "plan_extraction",
    "repair",
    "verify",
]
