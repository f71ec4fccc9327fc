"""Read a store without its model, a tokenizer or a network: NumPy, h5py, pydantic only.

    store = ActivationStore("out/store")
    store.activation("blocks.0.attn.hook_pattern", rows=slice(0, 32), heads=[1])

Opening reads the manifest and the index; activations are read when asked for, and only the
chunks that hold what was asked for (a chunk is whole rows of 0.25–1 MiB, so one head of a small
pattern costs as much as all of them). Rows are named by id, their place in the source. PyTorch
and TransformerLens are imported only by :meth:`ActivationStore.cache` and
:meth:`ActivationStore.torch_dataset`.

A request for rows is sorted, split by part, coalesced into runs (random access to a chunked HDF5
dataset row by row is 38–113 times slower than a slice) and put back in the order asked for. Files
open when first needed, are kept open up to a small number, and reopen after a fork or in another
process: h5py objects can neither be pickled nor shared.

Not for writing activations: that is :func:`interp.store.extract.extract`.

Most parts of a store have the same hooks, and often the same shapes: equal ones are kept once, so
that an index of a hundred thousand parts costs some tens of megabytes.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import ArgumentError, HookError, StoreError, need_path
from interp.store import layout
from interp.store.hdf5 import Indices, dataset, decode, fits, open_hdf5, read_rows
from interp.store.measurements import (
    measurement_names,
    read_measurement,
    read_provenance,
    write_measurement,
)

if TYPE_CHECKING:
    import pandas

    from interp.hooks.transformer_lens_adapter import ActivationCache
    from interp.store.tensors import StoreDataset

RowSelector = slice | int | Sequence[int] | NDArray[Any] | None
Shapes = Mapping[str, tuple[int, ...]]
_NONE: Mapping[str, int] = {}
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
    overflows: Mapping[str, int]

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
        folder: where they lie; another folder that takes its place later is not read.
    """

    def __init__(self, folder: Path) -> None:
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


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None  # opening a file in it will say why
    return found.st_dev, found.st_ino


def folder_parts(folder: Path) -> list[SealedPart]:
    """The sealed (finished and indexed) HDF5 files of activations that a folder's index lists.

    Raises:
        StoreError: if the index is damaged.
    """
    known: dict[str, Shapes] = {}
    parts = []
    for entry in layout.read_index(folder):
        if entry["kind"] != "part":
            continue
        shapes = {name: tuple(shape) for name, shape in entry["shapes"].items()}
        shared = known.setdefault(str(shapes), shapes)
        ranges = tuple((start, stop) for start, stop in entry["rows"])
        overflows = entry.get("overflows") or _NONE
        parts.append(SealedPart(folder, entry["file"], ranges, shared, overflows))
    return parts


@dataclass(frozen=True)
class RowBatch:
    """Some rows of one length, whose activations are read when asked for.

    Attributes:
        store: the store that they are read from.
        rows: the ids of the rows.
    """

    store: ActivationStore
    rows: Indices

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def activation(self, hook: str, **axes: Any) -> NDArray[Any]:
        """The activations of these rows, as :meth:`ActivationStore.activation` reads them."""
        return self.store.activation(hook, self.rows, **axes)

    def inputs(self) -> NDArray[Any]:
        """The model's inputs ``[row, pos(, channel)]``."""
        return self.store.inputs(self.rows)


def open_store(path: Path | str) -> ActivationStore:
    """The activation store in a folder.

    Nothing is read but its index: activations are read when they are asked for.

    Raises:
        StoreError: if there is no store, or it is damaged or of a newer major version.
    """
    return ActivationStore(path)


class ActivationStore:
    """An activation store, opened lazily.

    Args:
        path: the store's folder.

    Attributes:
        path: the store's folder.
        manifest: the plan and everything known about it.

    Raises:
        StoreError: if there is no store, or it is damaged or of a newer major version.
    """

    def __init__(self, path: Path | str) -> None:
        need_path("store", path)
        self.path = Path(path)
        self.manifest = layout.read_manifest(self.path)
        self._files = Files(self.path)
        self._index = Index(folder_parts(self.path))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a store as its path alone."""
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the store again from its path."""
        self.__init__(state["path"])  # type: ignore[misc]

    def __repr__(self) -> str:
        """The path, the number of rows and the number of hooks, in one line."""
        return f"ActivationStore({str(self.path)!r}, rows={self.rows}, hooks={len(self.hooks)})"

    @property
    def hooks(self) -> tuple[str, ...]:
        """The canonical names of the stored hooks, in the order in which they fire."""
        return tuple(self.manifest["hooks"])

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of the stored hooks: alias → canonical name."""
        return dict(self.manifest["aliases"])

    @property
    def rows(self) -> int:
        """How many rows are sealed."""
        return self._index.rows

    @property
    def complete(self) -> bool:
        """Whether the extraction was finished."""
        return bool(self.manifest["complete"])

    @cached_property
    def row_ids(self) -> Indices:
        """The ids of the sealed rows, ascending; ``0..rows-1`` when the store is complete."""
        return self._index.ids()

    @cached_property
    def lengths(self) -> dict[int, int]:
        """Length of a row in positions → how many rows have it."""
        return self._index.lengths()

    @property
    def overflows(self) -> dict[str, int]:
        """Hook → how many finite values became infinite in the cast to the stored dtype."""
        return self._index.overflows()

    @property
    def parts(self) -> tuple[SealedPart, ...]:
        """The store's finished HDF5 files; a file that is still being written is not listed."""
        return self._index.parts

    def canonical(self, hook: str) -> str:
        """The name under which a hook is stored.

        Raises:
            HookError: if it is not stored; names those that are.
        """
        name = self.manifest["aliases"].get(hook, hook)
        if name not in self.manifest["hooks"]:
            known = ", ".join(self.hooks[:8]) + (" …" if len(self.hooks) > 8 else "")
            raise HookError(f"hook {hook!r} is not in {self.path}: it has {known}")
        return str(name)

    def labels(self, hook: str) -> tuple[str, ...]:
        """The names of a hook's axes, such as ``("row", "head", "query", "key")``."""
        return tuple(self.manifest["hooks"][self.canonical(hook)]["labels"])

    def dtype(self, hook: str) -> str:
        """The dtype in which a hook is stored; NumPy reads ``bfloat16`` as float32."""
        return str(self.manifest["hooks"][self.canonical(hook)]["dtype"])

    def activation(
        self,
        hook: str,
        rows: RowSelector = None,
        *,
        heads: RowSelector = None,
        positions: RowSelector = None,
    ) -> NDArray[Any]:
        """Read the activations of a hook.

        Args:
            hook: a stored hook or an alias.
            rows: ids, a slice of ids, or ``None`` for all.
            heads: along the head axis, indices among the stored heads.
            positions: along the position axis (of queries in patterns), among those stored.

        Returns:
            ``[row, …]`` as the hook's labels say; every axis is kept.

        Raises:
            HookError: if the hook is not stored.
            ArgumentError: if rows are of different lengths or absent, or the hook has no such
                axis.
            StoreError: if the data are damaged.
        """
        name, labels = self.canonical(hook), self.labels(hook)
        chosen: dict[str, RowSelector] = {}
        if heads is not None:
            chosen[_axis(name, labels, ("head",), "heads")] = heads
        if positions is not None:
            chosen[_axis(name, labels, ("pos", "query"), "positions")] = positions
        values = self.read_raw(f"activations/{name}", rows, labels, chosen)
        return decode(values, self.dtype(name))

    def inputs(self, rows: RowSelector = None) -> NDArray[Any]:
        """The model's inputs ``[row, pos(, channel)]``."""
        return self.read_raw("inputs", rows)

    def targets(self, rows: RowSelector = None) -> NDArray[Any]:
        """The targets ``[row, pos(, output)]``; :exc:`StoreError` if the source had none."""
        return self.read_raw("targets", rows)

    def mask(self, rows: RowSelector = None) -> NDArray[Any]:
        """The mask ``[row, pos]``, true at the positions whose targets are scored.

        Raises:
            StoreError: if the rows were stored without a mask.
        """
        return self.read_raw("mask", rows)

    def latents(self, rows: RowSelector = None) -> dict[str, NDArray[Any]]:
        """The latents from which the task was built: name → ``[row, pos, …]``."""
        names = self._index.datasets("latents/")
        return {n.removeprefix("latents/"): self.read_raw(n, rows) for n in names}

    def batches(self, size: int, rows: RowSelector = None) -> Iterator[RowBatch]:
        """Rows in batches of one length each, ascending within a length.

        Raises:
            ArgumentError: if ``size`` is not positive.
            StoreError: if no row is finished yet.
        """
        if size < 1:
            raise ArgumentError(f"size must be at least 1, got {size}: give a number of rows")
        if not self.rows:
            raise StoreError(
                f"{self.path} holds no finished row: extract it again with resume=True (--resume)"
            )
        wanted = np.unique(self._index.resolve(rows))
        by_length: dict[Any, list[Indices]] = {}
        for part, _, places in self._index.locate(wanted):
            by_length.setdefault(part.shapes["inputs"][1:], []).append(wanted[places])
        for _, found in sorted(by_length.items()):
            ids = np.sort(np.concatenate(found))
            for start in range(0, len(ids), size):
                yield RowBatch(self, ids[start : start + size])

    def cache(self, rows: RowSelector = None, model: Any = None) -> ActivationCache:
        """A TransformerLens ``ActivationCache`` whose tensors load when they are used.

        Args:
            rows: rows of one length; ``None`` for all.
            model: the model, for those of the cache's methods that need weights.
        """
        from interp.hooks.transformer_lens_adapter import ActivationCache
        from interp.store.tensors import LazyTensors

        return ActivationCache(LazyTensors(self, self._index.resolve(rows)), model)

    def torch_dataset(
        self, hooks: Sequence[str] | None = None, *, shuffle: int | None = None, epoch: int = 0
    ) -> StoreDataset:
        """A map-style data set for ``torch.utils.data.DataLoader``, with worker processes.

        Args:
            hooks: the hooks to give; ``None`` for all.
            shuffle: seed of the order, or ``None`` for the source's order.
            epoch: each epoch is another order of the same seed.
        """
        from interp.store.tensors import StoreDataset

        return StoreDataset(self, hooks, shuffle=shuffle, epoch=epoch)

    @property
    def measurements(self) -> tuple[str, ...]:
        """The names of the tables that analyses wrote into the store."""
        return measurement_names(self.path)

    def measurement(self, name: str) -> pandas.DataFrame:
        """A table that an analysis wrote; :exc:`StoreError` if there is none of that name."""
        return read_measurement(self.path, name)

    def provenance(self, name: str) -> dict[str, Any]:
        """The provenance of a table: which analysis wrote it, with which arguments."""
        return read_provenance(self.path, name)

    def write_measurement(
        self,
        name: str,
        table: pandas.DataFrame,
        provenance: dict[str, Any],
        *,
        overwrite: bool = False,
    ) -> None:
        """Seal a table into the store; see :func:`interp.store.measurements.write_measurement`."""
        write_measurement(self.path, name, table, provenance, overwrite=overwrite)

    def read_raw(
        self,
        dataset: str,
        rows: RowSelector = None,
        labels: tuple[str, ...] = (),
        chosen: dict[str, RowSelector] | None = None,
    ) -> NDArray[Any]:
        """A dataset over the parts as it is stored, bfloat16 as 16-bit words.

        Args:
            dataset: its path in a part, such as ``inputs`` or ``activations/HOOK``.
            rows: the rows, as for :meth:`activation`.
            labels: the names of the dataset's axes.
            chosen: axis name → indices to keep along that axis.
        """
        wanted = self._index.resolve(rows)
        found = list(self._index.locate(wanted))
        shapes = {_shape(part, dataset)[1:] for part, _, _ in found}
        if len(shapes) > 1:
            raise ArgumentError(
                f"rows must be of one length, got {dataset} of shapes {sorted(shapes)}: read them "
                "with batches(), which keeps lengths apart"
            )
        if not found:
            raise ArgumentError(f"rows must pick at least one row, got {rows!r}: widen it")
        shape = shapes.pop()
        picks: list[Indices | None] = [None] * len(shape)
        for axis, indices in (chosen or {}).items():
            at = labels.index(axis) - 1
            picks[at] = as_indices(indices, shape[at], axis)
        pieces = [
            (places, read_rows(self._files.dataset(part, dataset), offsets, picks))
            for part, offsets, places in found
        ]
        return _assemble_rows(pieces, len(wanted))


def _shape(part: SealedPart, dataset: str) -> tuple[int, ...]:
    if dataset not in part.shapes:
        raise StoreError(f"{part.file.name} has no {dataset}: the source had none")
    return part.shapes[dataset]


def _assemble_rows(pieces: list[tuple[Indices, NDArray[Any]]], rows: int) -> NDArray[Any]:
    if len(pieces) == 1 and np.array_equal(pieces[0][0], np.arange(rows)):
        return pieces[0][1]
    out = np.empty((rows, *pieces[0][1].shape[1:]), pieces[0][1].dtype)
    for places, values in pieces:
        out[places] = values
    return out


def _axis(hook: str, labels: tuple[str, ...], wanted: tuple[str, ...], what: str) -> str:
    for label in wanted:
        if label in labels:
            return label
    raise ArgumentError(f"{what} cannot be picked from {hook}: its axes are {', '.join(labels)}")
