"""How one array is stored in a part's HDF5 file: chunks, dtype, fill value, filters and labels.

Chunks are whole rows of together 0.25–1 MiB, because rows are what is written and read. A row
larger than that is cut along its leading axes, so that one head of a large pattern can be read
alone. bfloat16 has no HDF5 type: it is stored as its 16-bit words with the attribute
``prooflens_dtype = "bfloat16"``, and widened exactly to float32 where NumPy reads it. Floats
have NaN as their fill value, so that a row that was never written cannot be mistaken for zeros.

fletcher32 covers the chunks only; headers are covered by the SHA-256 of the sealed file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import refuse_unless

BFLOAT16 = "bfloat16"
DTYPE_ATTRIBUTE = "prooflens_dtype"
CHUNK_BYTES = 1 << 20
_WANTED_CHUNK = CHUNK_BYTES // 2
_SMALLEST_CHUNK = CHUNK_BYTES // 4
_BFLOAT16_NAN = 0x7FC0
COMPRESSIONS = ("gzip", "lzf")


def split_rows(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The chunk's extent along each axis but the first: a row, cut if it exceeds a chunk."""
    extent = [max(1, n) for n in shape[1:]]
    for axis in range(len(extent)):
        rest = math.prod(extent[axis + 1 :]) * itemsize
        if extent[axis] * rest <= CHUNK_BYTES:
            break
        extent[axis] = max(1, min(extent[axis], CHUNK_BYTES // rest))
    return tuple(extent)


def chunk_shape(shape: Sequence[int], itemsize: int, batch: int) -> tuple[int, ...]:
    """The chunk shape: whole rows of together 0.25–1 MiB, aligned with batches where possible.

    A batch is written at once: the number of rows is the largest divisor of ``batch`` that fits
    in half a MiB, or a multiple of the batch when a batch is small. Half, because random rows
    are read faster from smaller chunks and writing does not care (``docs/howto-store.md``).
    """
    row = split_rows(shape, itemsize)
    fit = max(1, _WANTED_CHUNK // (math.prod(row) * itemsize))
    if fit >= batch:
        rows = fit // batch * batch
    else:
        least = math.ceil(_SMALLEST_CHUNK / (math.prod(row) * itemsize))
        aligned = max(d for d in range(1, fit + 1) if batch % d == 0)
        rows = aligned if aligned >= least else fit
    return (max(1, min(rows, shape[0])), *row)


def check_compression(name: str | None) -> None:
    """Refuse a compression that does not exist.

    Raises:
        ArgumentError: if the name is not one of :data:`COMPRESSIONS`.
    """
    rule, advice = f"must be one of {', '.join(COMPRESSIONS)}", "or leave it out"
    refuse_unless(name is None or name in COMPRESSIONS, "compression", rule, name, advice)


def _fill(stored: np.dtype[Any], logical: str) -> Any:
    if logical == BFLOAT16:
        return _BFLOAT16_NAN
    return np.nan if stored.kind == "f" else None


def create(
    group: h5py.Group,
    name: str,
    shape: Sequence[int],
    stored: np.dtype[Any],
    *,
    logical: str,
    labels: Sequence[str],
    batch: int,
    compression: str | None = None,
) -> h5py.Dataset:
    """Create an HDF5 dataset with named axes, stored in chunks with checksums.

    Values that are not written yet read as NaN for floating-point data and as 0 otherwise. A
    dataset of size 0 has no chunks, checksums or compression.

    Args:
        group: The HDF5 group in which the dataset is created.
        name: The dataset's name, without slashes.
        shape: Its full shape; the first axis counts the rows of this file.
        stored: The NumPy dtype on disk.
        logical: Name of the dtype of the values. It differs from ``stored`` only for bfloat16,
            which NumPy does not have; its bits are then stored as integers.
        labels: Names of the axes; the first is ``row``.
        batch: Number of rows that are written at a time; it decides the chunk shape.
        compression: One of :data:`COMPRESSIONS`, or None.

    Returns:
        The new dataset.
    """
    empty = math.prod(shape) == 0
    options: dict[str, Any] = {}
    if not empty:
        if compression is not None:
            options |= {"compression": compression, "shuffle": True}
        options["chunks"] = chunk_shape(shape, stored.itemsize, batch)
        options["fletcher32"] = True
        if batch % options["chunks"][0] == 0:  # written whole: a cache would only be a copy
            options["rdcc_nbytes"] = 0
    dataset = group.create_dataset(
        name, shape=tuple(shape), dtype=stored, fillvalue=_fill(stored, logical), **options
    )
    if logical != stored.name:
        dataset.attrs[DTYPE_ATTRIBUTE] = logical
    for axis, label in enumerate(labels):
        dataset.dims[axis].label = label
    return dataset


def decode(values: NDArray[Any], logical: str) -> NDArray[Any]:
    """The values in a dtype that NumPy has: bfloat16 words become float32, exactly."""
    if logical != BFLOAT16:
        return values
    widened = values.astype(np.uint16).astype(np.uint32) << 16
    return widened.view(np.float32)
