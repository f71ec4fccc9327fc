"""Merge a store's parts into one HDF5 file, for sharing.

All rows in ascending order, in one group per length (the root when there is one), with manifest,
index and measurements inside. It is written once, sealed and never appended to;
:class:`~interp.store.reader.ActivationStore` reads it like a folder. For anything that is still
being written, and for many writers, keep the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from interp.errors import OutputError, StoreError
from interp.output import output_file
from interp.store import arrays, layout
from interp.store.files import Files, Indices, SealedPart
from interp.store.reader import ActivationStore
from interp.store.verify import verify

__all__ = ["consolidate"]

_ROWS = 64


def consolidate(
    path: Path | str,
    out: Path | str,
    *,
    overwrite: bool = False,
    advanced: Callable[[int], None] | None = None,
) -> Path:
    """Write a complete store as one HDF5 file.

    Args:
        path: the store's folder.
        out: the file to write.
        overwrite: replace an existing file.
        advanced: called with the number of rows after each copy.

    Returns:
        The file.

    Raises:
        OutputError: if ``out`` exists or cannot be written.
        StoreError: if the store is incomplete or damaged.
    """
    store, out = ActivationStore(path), Path(out)
    if not store.complete:
        raise StoreError(f"{path}: is not complete ({store.rows} rows): resume its extraction")
    if store.path.is_dir():
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(path)):
            raise OutputError(f"{out} is inside {path}, which it is made of: name another place")
        if faults := verify(path):
            raise StoreError(f"{path}: is damaged: {faults[0]}: see prooflens store verify")
    with output_file(out, overwrite=overwrite, inputs=[path]) as draft:
        try:
            with h5py.File(draft, "w") as file:
                _write(store, file, advanced)
        except RuntimeError as error:  # what HDF5 makes of a disk that refuses
            raise OutputError(f"cannot write to {out}: {error}") from error
    return out


def _write(store: ActivationStore, file: h5py.File, advanced: Callable[[int], None] | None) -> None:
    file.attrs["format"] = layout.FORMAT
    file.attrs["version"] = f"{layout.VERSION[0]}.{layout.VERSION[1]}"
    groups = _by_shape(store)
    index = []
    for shape, ids in groups.items():
        name = "/" if len(groups) == 1 else "length-" + "x".join(map(str, shape))
        entry = _copy(store, file.require_group(name), ids, advanced)
        index.append({"group": name, **entry})
    for name in store.measurements:
        source = Files().get(store.path / layout.measurement_name(name))
        source.copy("/", file.require_group("measurements"), name)
    text = h5py.string_dtype()
    file.create_dataset("manifest", data=json.dumps(store.manifest), dtype=text)
    file.create_dataset("index", data=json.dumps(index), dtype=text)


def _shape(part: SealedPart) -> tuple[int, ...]:
    return part.shapes["inputs"][1:]


def _by_shape(store: ActivationStore) -> dict[tuple[int, ...], Indices]:
    found: dict[tuple[int, ...], list[Indices]] = {}
    for part in store.parts:
        ids = [np.arange(start, stop) for start, stop in part.ranges]
        found.setdefault(_shape(part), []).extend(ids)
    return {shape: np.sort(np.concatenate(ids)) for shape, ids in sorted(found.items())}


def _copy(
    store: ActivationStore,
    group: h5py.Group,
    ids: Indices,
    advanced: Callable[[int], None] | None,
) -> dict[str, Any]:
    files = Files()
    first = next(part for part in store.parts if part.ranges[0][0] in ids)
    overflows: dict[str, int] = {}
    shapes = {name: (len(ids), *shape[1:]) for name, shape in first.shapes.items()}
    for name, shape in shapes.items():
        source = files.dataset(first, name)
        lost = sum(p.overflows.get(name, 0) for p in store.parts if _shape(p) == _shape(first))
        made = arrays.create(
            group,
            name,
            shape,
            source.dtype,
            logical=arrays.logical_dtype(source),
            labels=[dim.label for dim in source.dims],
            batch=_ROWS,
            compression=store.manifest["plan"]["compression"],
        )
        if lost:
            made.attrs["overflows"] = lost
            overflows[name] = lost
    for start in range(0, len(ids), _ROWS):
        rows = ids[start : start + _ROWS]
        for name in shapes:
            made = group[name]
            made[start : start + len(rows)] = store.stored(name, rows)
        if advanced is not None:
            advanced(len(rows))
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    ranges = [[int(run[0]), int(run[-1]) + 1] for run in runs]
    stored = {name: list(shape) for name, shape in shapes.items()}
    return {"rows": ranges, "shapes": stored, "overflows": overflows}
