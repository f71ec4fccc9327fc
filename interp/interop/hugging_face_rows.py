"""A store's rows as a Hugging Face data set: a column a hook, a row a row.

What is read from HDF5 is handed to Arrow as it lies in memory, without a second copy. The set is in
memory whole: name the hooks and rows that are needed, or write sets of parts of the rows and join
them. ``save_to_disk`` makes of it what SAELens takes as ``cached_activations_path``, whose columns
have the names of the hooks and ``token_ids``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import StoreError
from interp.store.files import RowSelector
from interp.store.reader import ActivationStore

if TYPE_CHECKING:
    import datasets
    import pyarrow

__all__ = ["hugging_face_dataset"]

_BLOCK = 1 << 30  # elements of a chunk; Arrow's offsets have 31 bits


def hugging_face_dataset(
    store: ActivationStore, hooks: Sequence[str] | None = None, rows: RowSelector = None
) -> datasets.Dataset:
    """The rows of a store as a ``datasets.Dataset``.

    Args:
        store: An activation store whose chosen rows are of one length.
        hooks: Which hooks; all by default.
        rows: Ids, a slice of ids, or None for all.

    Returns:
        Columns ``row`` (the id), ``token_ids`` (or ``inputs``, of real values), ``targets`` and
        ``mask`` where the store has them, and each hook under its canonical name with the axes that
        the store has, ``[pos, d_model]`` for a residual stream; bfloat16 becomes float32.

    Raises:
        HookError: if a hook is not stored.
        ArgumentError: if rows are of different lengths, or absent.
        StoreError: if the data are damaged.
    """
    import datasets
    import pyarrow

    ids = np.concatenate([batch.rows for batch in store.batches(store.rows or 1, rows)])
    inputs = store.inputs(ids)
    tokens = np.issubdtype(inputs.dtype, np.integer)
    columns: dict[str, NDArray[Any]] = {"row": ids, "token_ids" if tokens else "inputs": inputs}
    for name in ("targets", "mask"):
        try:
            columns[name] = getattr(store, name)(ids)
        except StoreError:  # the source had none
            continue
    for hook in store.hooks if hooks is None else hooks:
        columns[store.canonical(hook)] = store.activation(hook, ids)
    arrow = {name: _chunks(values) for name, values in columns.items()}
    table = pyarrow.table(arrow)
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def _chunks(values: NDArray[Any]) -> pyarrow.ChunkedArray:
    """An array as a column, in chunks that Arrow's offsets can address."""
    import pyarrow

    each = max(1, _BLOCK // max(1, int(np.prod(values.shape[1:]))))
    parts = [values[start : start + each] for start in range(0, len(values), each)]
    return pyarrow.chunked_array([_column(part) for part in parts])


def _column(values: NDArray[Any]) -> pyarrow.Array:
    """Rows of one shape as nested lists over the array's own memory."""
    import pyarrow
    from datasets.features import features

    values = np.ascontiguousarray(values)
    column = pyarrow.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis]))
        offsets = pyarrow.array(np.arange(count + 1, dtype=np.int32) * values.shape[axis])
        column = pyarrow.ListArray.from_arrays(offsets, column)
    if values.ndim < 3:
        return column
    kind = getattr(features, f"Array{values.ndim - 1}DExtensionType")
    return pyarrow.ExtensionArray.from_storage(kind(values.shape[1:], str(values.dtype)), column)
