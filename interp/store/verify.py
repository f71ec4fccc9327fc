"""Check that a store still holds what was written, and drop what is damaged.

Every sealed file is hashed again and compared with its index line. Where the hash differs, or the
file does not fit its line, each dataset is read (fletcher32 finds the damaged one) and its shape
compared, so that the fault is named. A store that verifies holds the bytes that were written; it
does not say that the model that wrote them was right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from interp.errors import StoreError
from interp.store import layout
from interp.store.lock import writing
from interp.store.writer import sha256_file

__all__ = ["Fault", "repair", "verify"]


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
    """Check the checksums and shapes of every sealed file.

    Args:
        path: the store's folder.
        advanced: called with the number of bytes of each file that was read.

    Returns:
        Every fault; empty if the store is sound. An unfinished store is sound if its parts are.

    Raises:
        StoreError: if there is no store at ``path``, or its manifest or index cannot be read.
    """
    folder = Path(path)
    if folder.is_file():
        raise StoreError(f"{folder}: is a file: verify the store's folder")
    manifest = layout.read_manifest(folder)
    entries = layout.read_index(folder)
    faults: list[Fault] = []
    for entry in entries:
        faults += _file_faults(folder, manifest, entry)
        if advanced is not None:
            advanced(int(entry.get("bytes", 0)))
    return faults + list(_row_faults(manifest, entries))


def _file_faults(folder: Path, manifest: dict[str, Any], entry: dict[str, Any]) -> list[Fault]:
    name = str(entry.get("file"))
    path = folder / name
    if not path.is_file():
        return [Fault(name, "", "is missing")]
    missing = _missing_hooks(manifest, entry)
    if sha256_file(path) == entry.get("sha256"):
        return missing
    found = list(_dataset_faults(path, entry))
    size = path.stat().st_size
    if size != entry.get("bytes"):
        found.insert(0, Fault(name, "", f"is {size} bytes, was sealed with {entry.get('bytes')}"))
    whole = Fault(name, "", "SHA-256 is not the sealed one (no dataset shows the damage)")
    return (found or [whole]) + missing


def _missing_hooks(manifest: dict[str, Any], entry: dict[str, Any]) -> list[Fault]:
    if entry["kind"] != "part":
        return []
    shapes = entry.get("shapes", {})
    return [
        Fault(str(entry.get("file")), f"activations/{hook}", "is not in the part")
        for hook in manifest["hooks"]
        if f"activations/{hook}" not in shapes
    ]


def _dataset_faults(path: Path, entry: dict[str, Any]) -> Iterator[Fault]:
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        yield Fault(path.name, "", f"cannot be opened: {error}")
        return
    with file:
        for name, shape in entry.get("shapes", {}).items():
            reason = _damage(file, name, tuple(shape))
            if reason:
                yield Fault(path.name, name, reason)
        if entry["kind"] == "measurement":
            for name in file.get("columns", ()):
                reason = _damage(file, f"columns/{name}", (entry["n"],))
                if reason:
                    yield Fault(path.name, f"columns/{name}", reason)


def _damage(file: h5py.File, name: str, shape: tuple[int, ...]) -> str | None:
    try:
        dataset = file[name]
        if dataset.shape != shape:
            return f"has shape {dataset.shape}, was sealed with {shape}"
        step = dataset.chunks[0] if dataset.chunks else max(1, len(dataset))
        for start in range(0, len(dataset), step):
            dataset[start : start + step]
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        return f"cannot be read: {error}"
    return None


def _row_faults(manifest: dict[str, Any], entries: list[dict[str, Any]]) -> Iterator[Fault]:
    runs = sorted(tuple(run) for e in entries if e["kind"] == "part" for run in e["rows"])
    held = np.array(runs, dtype=np.int64).reshape(-1, 2)
    for (_, stop), (start, _) in itertools.pairwise(held.tolist()):
        if start < stop:
            yield Fault(layout.INDEX, "", f"rows {start}..{stop - 1} are in two parts")
    if not manifest["complete"]:
        return
    ends = [0, *held[:, 1].tolist()]
    starts = [*held[:, 0].tolist(), int(manifest["rows"])]
    for stop, start in zip(ends, starts, strict=True):
        if stop < start:
            yield Fault(layout.INDEX, "", f"rows {stop}..{start - 1} are in no part")


def repair(path: Path | str) -> list[str]:
    """Drop files that are damaged, so that resuming the extraction refills the parts.

    A dropped measurement is gone: run its analysis again.

    Returns:
        Names of the files that were dropped.

    Raises:
        StoreError: if there is no store at ``path``, or another process is writing it.
    """
    folder = Path(path)
    manifest = layout.read_manifest(folder)
    with writing(folder):
        bad = sorted({fault.file for fault in verify(folder)} - {layout.INDEX})
        entries = [e for e in layout.read_index(folder) if e.get("file") not in bad]
        incomplete = any(_row_faults({**manifest, "complete": True}, entries))
        if incomplete and manifest["complete"]:
            layout.write_manifest(folder, {**manifest, "complete": False})
        layout.rewrite_index(folder, entries)
        for name in bad:
            (folder / name).unlink(missing_ok=True)
        for leftover in folder.glob(f"*{layout.TEMPORARY}"):
            leftover.unlink()
    return bad
