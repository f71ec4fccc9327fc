"""Read a store without its model, a tokenizer or a network: NumPy, h5py, pydantic only.

    store = ActivationStore("out/store")
    store.activation("blocks.0.attn.hook_pattern", rows=slice(0, 32), heads=[1])

Opening reads the manifest and the index; activations are read when asked for, and only the
chunks that hold what was asked for (a chunk is whole rows of 0.25–1 MiB, so one head of a small
pattern costs as much as all of them). Rows are named by id, their place in the source. PyTorch
and TransformerLens are imported only by :meth:`ActivationStore.cache` and
:meth:`ActivationStore.torch_dataset`.

Not for writing activations: that is :func:`interp.store.extract.extract`.

Most parts of a store have the same hooks, and often the same shapes: equal ones are kept once, so
that an index of a hundred thousand parts costs some tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import ArgumentError, HookError, StoreError, need_path
from interp.store import arrays, layout
from interp.store.files import Files, Index, Indices, RowSelector, SealedPart, as_indices, read_rows
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

Shapes = Mapping[str, tuple[int, ...]]
_NONE: Mapping[str, int] = {}


def folder_parts(folder: Path) -> list[SealedPart]:
    """The sealed (finished and indexed) HDF5 files of activations that a folder's index lists.

    Raises:
        StoreError: if the index is damaged.
    """
    known: dict[str, Shapes] = {}
    last: dict[str, list[int]] = {}
    shared: Shapes = {}
    parts = []
    for entry in layout.index_entries(folder):
        if entry["kind"] != "part":
            continue
        if entry["shapes"] is not last:
            last = entry["shapes"]
            own = {name: tuple(shape) for name, shape in last.items()}
            shared = known.setdefault(str(last), own)
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
        return arrays.decode(values, self.dtype(name))

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
        from interp.store.tensors import activation_cache

        return activation_cache(self, self._index.resolve(rows), model)

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
