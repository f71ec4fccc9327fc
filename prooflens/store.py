"""Activation stores: extract, open, read in batches."""

from interp.store import (
    ActivationStore,
    Fault,
    RowBatch,
    extract,
    layout,
    plan_extraction,
    repair,
    verify,
)
from interp.store.arrays import chunk_shape
from interp.store.attention_mask import AttentionMask
from interp.store.reader import open_store
from interp.store.rows import layer_hooks, read_batches, stored_batch
from interp.store.writer import sha256_file

__all__ = [
    "ActivationStore",
    "AttentionMask",
    "Fault",
    "RowBatch",
    "chunk_shape",
    "extract",
    "layer_hooks",
    "layout",
    "open_store",
    "plan_extraction",
    "read_batches",
    "repair",
    "sha256_file",
    "stored_batch",
    "verify",
]
