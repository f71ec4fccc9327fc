"""The HDF5 files of a store: how an array lies in one, how a part is written and sealed, and the
gate through which files come in again.

Chunks are whole rows of together 0.25–1 MiB, because rows are what is written and read. A row
larger than that is cut along its leading axes, so that one head of a large pattern can be read
alone. bfloat16 has no HDF5 type: it is stored as its 16-bit words with the attribute
``prooflens_dtype = "bfloat16"``, and widened exactly to float32 where NumPy reads it. Floats
have NaN as their fill value, so that a row that was never written cannot be mistaken for zeros.
fletcher32 covers the chunks only; headers are covered by the SHA-256 of the sealed file.

Rows of a part are written into a draft, which is closed, fsynced, hashed and renamed; its index
entry is for the caller to write. A failed or abandoned part leaves nothing behind; parts
sealed before it are untouched.

HDF5 can say much that a store never says: that a name leads to another file, that the numbers of a
data set lie elsewhere on the disk, or that it has more rows than any disk holds. Only regular files
are opened, and a data set is taken if its name leads to it directly, its numbers (or text) lie in
the file itself, and it has the shape that the store's index tells of it. Whether the numbers are
those that were written is for checksums (:mod:`interp.store.verify`).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import StoreError
from interp.machine import need_bytes
from interp.output import draft_of, drop, fsync, settle
from interp.reading import MOST_BYTES, regular, sha256_file
from interp.store.layout import FORMAT, VERSION, part_name

BFLOAT16 = "bfloat16"
COMPRESSIONS = ("gzip", "lzf")
CHUNK_BYTES = 1 << 20
_WANTED_CHUNK = CHUNK_BYTES // 2
_SMALLEST_CHUNK = CHUNK_BYTES // 4
_CHUNK_CACHE = 2 * CHUNK_BYTES
_BFLOAT16_NAN = 0x7FC0
_ASKED = 1 << 26  # bytes from which on it is asked whether memory has them
_KINDS = "biuf"
_ERRORS = (
    AttributeError, IndexError, KeyError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip

Found = TypeVar("Found")
Shape = tuple[int, ...]
Indices = NDArray[np.int64]


def _row_extent(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
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
    row = _row_extent(shape, itemsize)
    fit = max(1, _WANTED_CHUNK // (math.prod(row) * itemsize))
    if fit >= batch:
        rows = fit // batch * batch
    else:
        least = math.ceil(_SMALLEST_CHUNK / (math.prod(row) * itemsize))
        aligned = max(d for d in range(1, fit + 1) if batch % d == 0)
        rows = aligned if aligned >= least else fit
    return (max(1, min(rows, shape[0])), *row)


def decode(values: NDArray[Any], logical: str) -> NDArray[Any]:
    """The values in a dtype that NumPy has: bfloat16 words become float32, exactly."""
    if logical != BFLOAT16:
        return values
    widened = values.astype(np.uint16).astype(np.uint32) << 16
    return widened.view(np.float32)


@dataclass(frozen=True)
class StoredArray:
    """Values that are about to be written to a dataset.

    Attributes:
        values: the values as stored, ``[row, …]``.
        logical: the dtype they stand for (``bfloat16`` for 16-bit words).
        labels: the names of the axes.
        overflows: how many finite values a cast made infinite.
    """

    values: NDArray[Any]
    logical: str
    labels: tuple[str, ...]
    overflows: int = 0


def row_ranges(rows: Indices) -> list[list[int]]:
    """Row ids as half-open ranges: ``[3, 4, 5, 9]`` → ``[[3, 6], [9, 10]]``."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(rows, cuts) if len(run)]


@dataclass
class PartFile:
    """The file of one part, until it is sealed.

    Attributes:
        folder: the store's folder.
        number: the number of the part.
        rows: source row ids, in the order they will be written.
        batch: how many rows are written at a time.
        compression: the name of a compression filter, or ``None``.
        source_sha256: digest of the part's inputs, to recognise another source on resuming.
    """

    folder: Path
    number: int
    rows: Indices
    batch: int
    compression: str | None
    source_sha256: str
    overflows: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draft = draft_of(self.folder / part_name(self.number))
        self._file: h5py.File | None = None
        self._datasets: dict[str, h5py.Dataset] = {}  # closing one would empty its chunk cache

    def write(self, start: int, columns: Mapping[str, StoredArray]) -> None:
        """Write a batch at row ``start`` of the part.

        Raises:
            OSError: if the disk refuses.
        """
        if self._file is None:
            self._file = self._create(columns)
        for path, column in columns.items():
            stop = start + len(column.values)
            self._datasets[path][start:stop] = np.ascontiguousarray(column.values)
            if column.overflows:
                self.overflows[path] += column.overflows

    def _create(self, columns: Mapping[str, StoredArray]) -> h5py.File:
        file = h5py.File(self._draft, "w", rdcc_nbytes=_CHUNK_CACHE, rdcc_w0=1.0)
        file.attrs["format"] = FORMAT
        file.attrs["version"] = VERSION
        file.attrs["part"] = self.number
        file.create_dataset("row", data=self.rows, fletcher32=True)
        file["row"].dims[0].label = "row"
        for path, column in columns.items():
            self._datasets[path] = self._create_dataset(file, path, column)
        return file

    def _create_dataset(self, file: h5py.File, path: str, column: StoredArray) -> h5py.Dataset:
        """A dataset of all rows with named axes, stored in chunks with checksums.

        Values that are not written yet read as NaN for floating-point data and as 0 otherwise. A
        dataset of size 0 has no chunks, checksums or compression.
        """
        shape, dtype = (len(self.rows), *column.values.shape[1:]), column.values.dtype
        options: dict[str, Any] = {}
        if math.prod(shape):
            if self.compression is not None:
                options |= {"compression": self.compression, "shuffle": True}
            options["chunks"] = chunk_shape(shape, dtype.itemsize, self.batch)
            options["fletcher32"] = True
            if (
                self.batch % options["chunks"][0] == 0
            ):  # written whole: a cache would only be a copy
                options["rdcc_nbytes"] = 0
        fill: Any = np.nan if dtype.kind == "f" else None
        if column.logical == BFLOAT16:
            fill = _BFLOAT16_NAN
        made = file.create_dataset(path, shape=shape, dtype=dtype, fillvalue=fill, **options)
        if column.logical != dtype.name:
            made.attrs["prooflens_dtype"] = column.logical
        for axis, label in enumerate(column.labels):
            made.dims[axis].label = label
        return made

    def seal(self) -> dict[str, Any]:
        """Close the file, flush it to disk, hash and rename it; return its index entry.

        Raises:
            OSError: if the disk refuses.
            StoreError: if nothing was written.
        """
        if self._file is None:
            raise StoreError(f"part {self.number} has no rows")
        for path, count in sorted(self.overflows.items()):
            self._file[path].attrs["overflows"] = count
        shapes = _shapes(self._file)
        self._datasets.clear()
        self._file.close()
        self._file = None
        fsync(self._draft)
        size, digest = self._draft.stat().st_size, sha256_file(self._draft)
        final = self.folder / part_name(self.number)
        settle(self._draft, final)
        return {
            "kind": "part",
            "part": self.number,
            "file": final.name,
            "rows": row_ranges(self.rows),
            "n": len(self.rows),
            "bytes": size,
            "sha256": digest,
            "source_sha256": self.source_sha256,
            "shapes": shapes,
            "overflows": dict(sorted(self.overflows.items())),
        }

    def abandon(self) -> None:
        """Delete what was written; after a full disk, closing may itself fail."""
        self._datasets.clear()
        if self._file is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._file.close()
            self._file = None
        drop(self._draft)


def _shapes(file: h5py.File) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = list(item.shape)

    file.visititems(visit)
    return found


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


def read_rows(
    dataset: h5py.Dataset, offsets: Indices, others: Sequence[Indices | None]
) -> NDArray[Any]:
    """Rows of a dataset in the order of ``offsets``, as runs of slices.

    Args:
        dataset: the dataset to read, ``[row, …]``.
        offsets: which rows to read, in any order, repeated or not.
        others: for each further axis the indices to keep, or ``None`` for all.

    Raises:
        StoreError: if a chunk's checksum is wrong, or it was written with an absent filter.
    """
    spans, takes = (
        zip(*(_span(i, n) for i, n in zip(others, dataset.shape[1:], strict=True)), strict=True)
        if others
        else ((), ())
    )
    kept = [
        n if take is None else len(take)
        for take, n in zip(takes, (s.stop - s.start for s in spans), strict=True)
    ]
    place = f"{dataset.file.filename}: {dataset.name}"
    out = empty((len(offsets), *kept), dataset.dtype, f"{len(offsets)} rows of {place}")
    order = np.argsort(offsets, kind="stable")
    ascending = offsets[order]
    gap = dataset.chunks[0] if dataset.chunks else 1
    for places in np.split(np.arange(len(order)), np.flatnonzero(np.diff(ascending) > gap) + 1):
        if len(places):
            first, last = int(ascending[places[0]]), int(ascending[places[-1]])
            block = _read(dataset, (slice(first, last + 1), *spans))
            for axis, take in enumerate(takes, start=1):
                if take is not None:
                    block = block.take(take, axis=axis)
            out[order[places]] = block[ascending[places] - first]
    return out


def _span(chosen: Indices | None, size: int) -> tuple[slice, Indices | None]:
    """The smallest slice that covers the indices, and which of it to take (``None``: all)."""
    if chosen is None:
        return slice(0, size), None
    if not len(chosen):
        return slice(0, 0), None
    low, high = int(chosen.min()), int(chosen.max()) + 1
    whole = np.array_equal(chosen, np.arange(low, high))
    return slice(low, high), None if whole else chosen - low


def _read(dataset: h5py.Dataset, at: tuple[slice, ...]) -> NDArray[Any]:
    def read() -> NDArray[Any]:
        found = np.asarray(dataset[at])
        size = os.fstat(dataset.file.id.get_vfd_handle()).st_size
        if size < dataset.file.id.get_filesize():  # HDF5 reads zeros behind the end
            raise OSError("the file was cut while it was read")
        return found

    return reading(f"{dataset.file.filename}: {dataset.name}", read)
