"""Find out which file holds which rows, and read only those.

Rows are named by their id, their place in the source. A request is sorted, split by part,
coalesced into runs (random access to a chunked HDF5 dataset row by row is 38–113 times slower
than a slice) and put back in the order asked for. Files open when first needed, are kept open
up to a small number, and reopen after a fork or in another process: h5py objects can neither be
pickled nor shared.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import ArgumentError, StoreError
from interp.store.hdf5 import dataset, empty, fits, open_hdf5, reading

RowSelector = slice | int | Sequence[int] | NDArray[Any] | None
Indices = NDArray[np.int64]
_OPEN_FILES = 16


@dataclass(frozen=True, slots=True)
class SealedPart:
    """Which rows are in one sealed HDF5 file.

    Attributes:
        folder: of the HDF5 file.
        name: of the HDF5 file.
        ranges: half-open runs of row ids, in the order of the file.
        shapes: the name of each dataset → its shape.
        overflows: dataset → finite values that became infinite when cast.
    """

    folder: Path
    name: str
    ranges: tuple[tuple[int, int], ...]
    shapes: Mapping[str, tuple[int, ...]]
    overflows: Mapping[str, int] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The HDF5 file."""
        return self.folder / self.name

    @property
    def rows(self) -> int:
        """The number of rows in the part."""
        return sum(stop - start for start, stop in self.ranges)


class Index:
    """Finds which part of a store (one HDF5 file) holds a row, by the row's id and without opening
    any file.

    Args:
        parts: the parts that were completely written.
    """

    def __init__(self, parts: Iterable[SealedPart]) -> None:
        self.parts = tuple(parts)
        runs = []
        for number, part in enumerate(self.parts):
            offset = 0
            for start, stop in part.ranges:
                runs.append((start, stop, number, offset))
                offset += stop - start
        runs.sort()
        self._runs = runs
        self._starts = [run[0] for run in runs]
        self.rows = sum(stop - start for start, stop, _, _ in runs)
        self.end = max((stop for _, stop, _, _ in runs), default=0)

    def ids(self) -> Indices:
        """The ids of all rows in the store, ascending."""
        fits(8 * self.rows, f"a list of {self.rows:,} rows")
        spans = [np.arange(start, stop) for start, stop, _, _ in self._runs]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def lengths(self) -> dict[int, int]:
        """Length of a row in positions → how many rows have it."""
        found: Counter[int] = Counter()
        for part in self.parts:
            found[(*part.shapes["inputs"], 0)[1]] += part.rows
        return dict(sorted(found.items()))

    def datasets(self, folder: str) -> list[str]:
        """The names of the datasets of any part that begin with a folder's, sorted."""
        names = {name for part in self.parts for name in part.shapes}
        return sorted(name for name in names if name.startswith(folder))

    def overflows(self) -> dict[str, int]:
        """Hook → how many finite values became infinite when they were cast, over all parts."""
        found: Counter[str] = Counter()
        for part in self.parts:
            for name, count in part.overflows.items():
                found[name.removeprefix("activations/")] += count
        return dict(found)

    def resolve(self, rows: RowSelector) -> Indices:
        """The row ids that a request asks for.

        Raises:
            ArgumentError: if it names a row that is not there.
        """
        if rows is None:
            return self.ids()
        wanted = as_indices(rows, self.end, "rows")
        if isinstance(rows, slice) and self.rows != self.end:
            wanted = wanted[np.isin(wanted, self.ids())]
        return wanted

    def locate(self, wanted: Indices) -> Iterator[tuple[SealedPart, Indices, Indices]]:
        """For each part, the offsets of wanted rows in it and their places in ``wanted``.

        Raises:
            ArgumentError: if a row is not in the store.
        """
        found: dict[int, tuple[list[int], list[int]]] = {}
        for place, row in enumerate(wanted.tolist()):
            at = bisect_right(self._starts, row) - 1
            if at < 0 or row >= self._runs[at][1]:
                raise ArgumentError(
                    f"rows must be in the store, got {row}: it holds {self.rows} rows of ids "
                    f"0..{self.end - 1}; a part that holds it is missing"
                )
            start, _, number, offset = self._runs[at]
            offsets, places = found.setdefault(number, ([], []))
            offsets.append(offset + row - start)
            places.append(place)
        for number, (offsets, places) in found.items():
            yield self.parts[number], np.asarray(offsets), np.asarray(places)


def as_indices(chosen: RowSelector, size: int, what: str) -> Indices:
    """A slice, an integer or integers as non-negative indices below ``size``.

    Raises:
        ArgumentError: if one is out of range or not an integer.
    """
    if isinstance(chosen, slice):
        return np.arange(*chosen.indices(size))
    given = np.atleast_1d(np.asarray(chosen))
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype == bool and given.shape == (size,):
        return np.flatnonzero(given)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ArgumentError(f"{what} must be a slice or integers, got {chosen!r}: list indices")
    wanted = np.where(given < 0, given + size, given).astype(np.int64)
    bad = given[(wanted < 0) | (wanted >= size)]
    if bad.size:
        raise ArgumentError(f"{what} must be in 0..{size - 1}, got {bad[:5].tolist()}: lower them")
    return wanted


class Files:
    """The HDF5 files that this process has open, of which there are at most a few.

    Args:
        folder: where they lie, if another folder that takes its place later is not to be read.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._open: OrderedDict[Path, h5py.File] = OrderedDict()
        self._process = os.getpid()
        self._folder, self._identity = folder, _identity(folder)

    def get(self, path: Path) -> h5py.File:
        """Open a file for reading, or return it if it is open.

        Raises:
            StoreError: if it is missing or damaged, or its folder is another one now.
        """
        if _identity(self._folder) not in (self._identity, None):
            raise StoreError(f"{self._folder} was replaced since it was opened: open it again")
        if self._process != os.getpid():
            self._open, self._process = OrderedDict(), os.getpid()
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        file = open_hdf5(path)
        self._open[path] = file
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file

    def dataset(self, part: SealedPart, name: str) -> h5py.Dataset:
        """The HDF5 dataset ``name`` of a part's file; its shape must be the index's.

        Raises:
            StoreError: if it is not there, of another shape, or no plain data of the file's own.
        """
        return dataset(self.get(part.file), name, part.shapes[name])


def _identity(folder: Path | None) -> tuple[int, int] | None:
    try:
        found = None if folder is None else folder.stat()
    except OSError:
        return None  # opening a file in it will say why
    return None if found is None else (found.st_dev, found.st_ino)


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
