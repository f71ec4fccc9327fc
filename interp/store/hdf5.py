"""The gate through which HDF5 files come in: regular files, and in them plain data sets alone.

HDF5 can say much that a store never says: that a name leads to another file, that the numbers of a
data set lie elsewhere on the disk, or that it has more rows than any disk holds. A data set is
taken if its name leads to it directly, its numbers (or text) lie in the file itself, and it
has the shape that the store's index tells of it.
Whether the numbers are those that were written is for checksums (:mod:`interp.store.verify`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import StoreError
from interp.machine import need_bytes
from interp.reading import MOST_BYTES, regular

_ASKED = 1 << 26  # bytes from which on it is asked whether memory has them
_KINDS = "biuf"
_ERRORS = (
    AttributeError, IndexError, KeyError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip

Found = TypeVar("Found")
Shape = tuple[int, ...]


def open_hdf5(path: Path) -> h5py.File:
    """A regular file, open for reading.

    Raises:
        StoreError: if it is none, or HDF5 cannot open it.
    """
    regular(path, "store", StoreError)
    try:
        return h5py.File(path, "r")
    except _ERRORS as error:
        raise StoreError(
            f"{path}: cannot be opened: {error}: see prooflens store --verify"
        ) from None


def reading(place: str, read: Callable[[], Found]) -> Found:
    """The result of ``read()``; an HDF5 error becomes a StoreError that names ``place``.

    Raises:
        StoreError: if it cannot be read.
    """
    try:
        return read()
    except _ERRORS as error:
        said = str(error).strip("'\"") or type(error).__name__
        raise StoreError(
            f"{place}: cannot be read: {said}: see prooflens store --verify"
        ) from error


def dataset(file: h5py.File, name: str, shape: Shape | None = None) -> h5py.Dataset:
    """A plain data set of a file.

    Args:
        file: Open for reading.
        name: The data set's path in the file.
        shape: The shape that it must have.

    Raises:
        StoreError: if there is none of that name, shape and kind in the file itself.
    """
    place = f"{file.filename}: {name.strip('/')}"
    found = reading(place, lambda: _resolve_name(file, name))
    if not isinstance(found, h5py.Dataset):
        raise StoreError(f"{place}: is no data set: see prooflens store --verify")
    if faults := reading(place, lambda: _faults(found, shape)):
        raise StoreError(f"{place}: {'; '.join(faults)}: see prooflens store --verify")
    return found


def _resolve_name(file: h5py.File, name: str) -> object:
    """What the name leads to without leaving the file."""
    found: object = file
    for step in name.strip("/").split("/"):
        link = found.get(step, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            raise KeyError("is not there")
        if not isinstance(link, h5py.HardLink) or not isinstance(found, h5py.Group):
            raise KeyError("is a link to another place")
        found = found[step]
    return found


def _faults(found: h5py.Dataset, shape: Shape | None) -> list[str]:
    faults, text = [], h5py.check_string_dtype(found.dtype) is not None
    if found.is_virtual or found.external:
        faults.append("its data lie in another place")
    if shape is not None and found.shape != shape:
        faults.append(f"has shape {found.shape}, was sealed with {shape}")
    if found.shape is None:
        faults.append("is empty")
    if found.dtype.kind not in _KINDS and not text:
        faults.append(f"holds {found.dtype} and neither numbers nor text")
    return faults


def unwritten(found: h5py.Dataset) -> bool:
    """Whether a data set says that it has more than the file holds for it."""
    count = math.prod(found.shape)
    if found.chunks:
        count = math.prod(-(-n // of) for n, of in zip(found.shape, found.chunks, strict=True))
    return bool(count > found.id.get_storage_size())


def read_words(file: h5py.File, name: str) -> str:
    """The text that is a data set of its own.

    Raises:
        StoreError: if there is none, or it is no text of at most 64 MiB.
    """
    found, place = dataset(file, name, ()), f"{file.filename}: {name}"
    if found.dtype.itemsize > MOST_BYTES:
        raise StoreError(f"{place}: has more than {MOST_BYTES >> 20} MiB")
    return str(reading(place, lambda: found.asstr()[()]))


def empty(shape: Shape, dtype: np.dtype[np.generic], place: str) -> NDArray[np.generic]:
    """Memory for what will be read, refused if the machine has not so much.

    Raises:
        StoreError: with the estimate.
    """
    fits(math.prod(shape) * dtype.itemsize, place)
    return np.empty(shape, dtype)


def fits(size: int, what: str) -> None:
    """Refuse what memory has not so many bytes for; whether it has a few is not asked.

    Raises:
        StoreError: with the estimate.
    """
    if size > _ASKED:
        need_bytes(size, what, "read fewer rows", error=StoreError)
