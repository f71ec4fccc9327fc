"""Is a store still what was written? And putting aside what is not.

First the manifest and every line of the index are held against their schemas and each other, then
every sealed file is hashed again and compared with its line. Where the hash differs, or the file
does not fit its line, each dataset is read (fletcher32 finds the damaged one) and its shape
compared, so that the fault is named. A store that verifies holds the bytes that were written; it
does not say that the model that wrote them was right.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from interp.errors import StoreError
from interp.output import drop
from interp.reading import sha256_file
from interp.store import layout
from interp.store.hdf5 import dataset, open_hdf5, reading, unwritten


@dataclass(frozen=True)
class Fault:
    """A file or data set of a store that is not what it was when it was sealed.

    Attributes:
        file: which file, or ``index.jsonl`` for rows that no part holds.
        dataset: which dataset, or empty if it is the file as a whole.
        reason: what is wrong.
    """

    file: str
    dataset: str
    reason: str

    def __str__(self) -> str:
        """The fault as one line."""
        return f"{self.file}: {self.dataset + ': ' if self.dataset else ''}{self.reason}"


def verify(path: Path | str, *, advanced: Callable[[int], None] | None = None) -> list[Fault]:
    """Hold manifest and index against their schemas; re-read checksums and shapes of every file.

    Args:
        path: the store's folder.
        advanced: called with the number of bytes of each file that was read.

    Returns:
        Every fault; empty if the store is sound. An unfinished store is sound if its parts are.

    Raises:
        StoreError: if there is no store at ``path``, or its manifest does not fit the schema.
    """
    folder = Path(path)
    manifest = layout.read_manifest(folder)
    faults = [Fault(layout.MANIFEST, "", reason) for reason in layout.manifest_faults(manifest)]
    of_lines, begun = list[Fault](), _edition(folder)
    runs: list[tuple[int, int]] = []
    for entry, wrong in layout.index_entries(folder):
        if wrong:
            of_lines += [Fault(layout.INDEX, "", reason) for reason in wrong]
            continue
        if entry["kind"] == "part":
            runs += [(start, stop) for start, stop in entry["rows"]]
        found = _file_faults(folder, manifest, entry)
        while found and (now := _edition(folder)) != begun:
            begun, found = now, _faults_now(folder, manifest, entry)
        faults += found
        if advanced is not None:
            advanced(entry.get("bytes", 0))
    return faults + of_lines + list(_row_faults(manifest, runs))


def _edition(folder: Path) -> tuple[int, int]:
    """Tells one state of the index from another."""
    try:
        told = (folder / layout.INDEX).stat()
    except OSError:
        return 0, 0
    return told.st_ino, told.st_mtime_ns


def _faults_now(folder: Path, manifest: dict[str, Any], entry: dict[str, Any]) -> list[Fault]:
    """What is wrong with a file by the line that the index has of it now.

    Another process may have replaced a table since the line was read.
    """
    name = entry.get("file")
    lines = (line for line in _good_entries(folder) if line.get("file") == name)
    return _file_faults(folder, manifest, next(lines, entry))


def _good_entries(folder: Path) -> Iterator[dict[str, Any]]:
    return (entry for entry, wrong in layout.index_entries(folder) if not wrong)


def _file_faults(folder: Path, manifest: dict[str, Any], entry: dict[str, Any]) -> list[Fault]:
    name = entry.get("file")
    if entry["kind"] not in ("part", "measurement"):
        return []
    path = folder / str(name)
    if not os.path.lexists(path):
        return [Fault(str(name), "", "is missing")]
    try:
        found, size = sha256_file(path), path.stat().st_size
    except OSError as error:
        return [Fault(str(name), "", f"cannot be read: {error.strerror or error}")]
    old = entry.get("replaces", {})
    if found in (entry["sha256"], old.get("sha256")):
        told = entry if found == entry["sha256"] else {**entry, **old}
        return _missing_hooks(manifest, entry) + list(_dataset_faults(path, told, read=False))
    numbers = entry["kind"] == "part"  # spoilt text can keep the library in C for ever
    damage = list(_dataset_faults(path, entry, read=numbers))
    if size != entry["bytes"]:
        said = f"is {size} bytes, was sealed with {entry['bytes']}"
        damage.insert(0, Fault(str(name), "", said))
    whole = Fault(str(name), "", "SHA-256 is not the sealed one (no dataset shows the damage)")
    return damage or [whole]


def _missing_hooks(manifest: dict[str, Any], entry: dict[str, Any]) -> list[Fault]:
    """Hooks that a sound part has not: the manifest says what is not so, not the part."""
    if entry["kind"] != "part":
        return []
    return [
        Fault(layout.MANIFEST, f"activations/{hook}", f"is not in {entry['file']}, which is sound")
        for hook in manifest["hooks"]
        if f"activations/{hook}" not in entry["shapes"]
    ]


def _dataset_faults(path: Path, entry: dict[str, Any], *, read: bool) -> Iterator[Fault]:
    """Data sets that are not what the index tells; with ``read``, or whose numbers are damaged."""
    try:
        file = open_hdf5(path)
    except StoreError as error:
        yield Fault(path.name, "", _reason(error, path))
        return
    with file:
        shapes = {name: tuple(shape) for name, shape in entry.get("shapes", {}).items()}
        if entry["kind"] == "measurement":
            names = reading(str(path), lambda: list(file.get("columns") or ()))
            shapes = {f"columns/{name}": (entry["n"],) for name in names}
        for name, shape in shapes.items():
            if reason := _damage(file, name, shape, read):
                yield Fault(path.name, name, reason)


def _damage(file: h5py.File, name: str, shape: tuple[int, ...], read: bool) -> str | None:
    place = f"{file.filename}: {name}"
    try:
        found = dataset(file, name, shape)
        if reading(place, lambda: unwritten(found)):
            return "says that it has more than the file holds"
        step = found.chunks[0] if found.chunks else max(1, len(found))
        for start in range(0, len(found) if read else 0, step):
            reading(place, partial(found.__getitem__, slice(start, start + step)))
    except StoreError as error:
        return _reason(error, Path(place))
    return None


def _reason(error: StoreError, place: Path) -> str:
    return str(error).removeprefix(f"{place}: ").removesuffix(": see prooflens store --verify")


def _row_faults(manifest: dict[str, Any], runs: list[tuple[int, int]]) -> Iterator[Fault]:
    held = np.array(sorted(runs), dtype=np.int64).reshape(-1, 2)
    for (_, stop), (start, _) in itertools.pairwise(held.tolist()):
        if start < stop:
            yield Fault(layout.INDEX, "", f"rows {start}..{stop - 1} are in two parts")
    if not manifest["complete"] or manifest["rows"] is None:
        return
    ends = [0, *held[:, 1].tolist()]
    starts = [*held[:, 0].tolist(), manifest["rows"]]
    for stop, start in zip(ends, starts, strict=True):
        if stop < start:
            yield Fault(layout.INDEX, "", f"rows {stop}..{start - 1} are in no part")
    if len(held) and int(held[-1, 1]) > manifest["rows"]:
        yield Fault(layout.MANIFEST, "", f"says {manifest['rows']} rows, its parts have more")


def repair(path: Path | str, *, drop_damaged: bool = False) -> list[str]:
    """Take damaged files out of a store, so that resuming the extraction refills the parts.

    They are moved into the store's folder ``damaged/`` and lose their line; lines of the index that
    are none, or of a file that an earlier line names, go too. Nothing outside the store is touched,
    and nothing sound.

    Args:
        path: the store.
        drop_damaged: delete what is in ``damaged/``, now or from before.

    Returns:
        Names of the files that were moved; a table among them is to be made again by its analysis.

    Raises:
        StoreError: if there is no store at ``path``, another process is writing it, or its manifest
            is what is wrong: no repair knows what it should say.
    """
    folder = Path(path)
    manifest = layout.read_manifest(folder)
    with layout.writing(folder):
        faults = verify(folder)
        if wrong := [str(fault) for fault in faults if fault.file == layout.MANIFEST]:
            raise StoreError(
                f"{folder}: its manifest cannot be mended: {wrong[0]}: put back the one that was "
                "written, or extract again with overwrite=True (--overwrite)"
            )
        bad = sorted({fault.file for fault in faults} - {layout.INDEX})
        kept = [entry for entry in _good_entries(folder) if entry.get("file") not in bad]
        runs = [(a, b) for e in kept if e["kind"] == "part" for a, b in e["rows"]]
        incomplete = any(_row_faults({**manifest, "complete": True}, runs))
        try:
            if incomplete and manifest["complete"]:
                layout.write_manifest(folder, {**manifest, "complete": False})
            for name in bad:
                _move_aside(folder, name)
            layout.rewrite_index(folder, kept)
            layout.settle_replacements(folder)
            layout.drop_drafts(folder)
        except OSError as error:
            raise StoreError(f"{folder}: writing failed: {error.strerror or error}") from error
        if drop_damaged:
            drop(folder / layout.DAMAGED)
    return bad


def _move_aside(folder: Path, name: str) -> None:
    if not os.path.lexists(folder / name):
        return
    aside = folder / layout.DAMAGED
    if aside.is_symlink():
        raise StoreError(f"{aside}: leads out of the store: remove it")
    aside.mkdir(exist_ok=True)
    ends = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
    places = (aside / f"{name}{end}" for end in ends)
    os.replace(folder / name, next(place for place in places if not os.path.lexists(place)))
