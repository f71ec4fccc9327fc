"""The files of a store: their names, the manifest and the index.

A store is a folder::

    manifest.json           what was planned: model, weights, source, hooks, dtypes, plan digest
    index.jsonl             one line per sealed file, with its SHA-256 and shapes
    part-00000.h5 …         sealed parts: whole rows of every hook
    measurements-NAME.h5    sealed tables that analyses wrote about this store

A file is *sealed*: written under a temporary name, closed, fsynced, hashed, renamed, and only
then indexed. What the index names is finished; anything else in the folder is not part of the
store. An index line is one ``write`` ending in a newline, so a torn last line is recognised and
dropped. An HDF5 file that is being written can be lost whole when its process dies; a sealed one
cannot, which is why there are many files and not one.

Not for data that changes: a sealed part is never written again. That a store is complete and
verifies says that its bytes are those that were written, not that the model was the right one:
for that the manifest has the SHA-256 of the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from interp.errors import StoreError

__all__ = [
    "FORMAT",
    "INDEX",
    "MANIFEST",
    "VERSION",
    "append_index",
    "check_version",
    "fsync",
    "is_store",
    "measurement_name",
    "part_name",
    "product_version",
    "read_index",
    "read_manifest",
    "replace_text",
    "rewrite_index",
    "store_files",
    "write_manifest",
]

FORMAT = "prooflens-store"
VERSION = (1, 0)
MANIFEST = "manifest.json"
INDEX = "index.jsonl"
LOCK = ".lock"
TEMPORARY = ".tmp"


def part_name(number: int) -> str:
    """The file name of a part, given its number."""
    return f"part-{number:05d}.h5"


def measurement_name(name: str) -> str:
    """The file name of a measurement, given its name."""
    return f"measurements-{name}.h5"


def product_version() -> str:
    """``prooflens`` and its version, as the manifest records it."""
    try:
        return f"prooflens {version('prooflens')}"
    except PackageNotFoundError:
        return "prooflens (not installed)"


def fsync(path: Path) -> None:
    """Ask the operating system to bring a file's or folder's bytes to the disk.

    Raises:
        OSError: if the disk refuses (full, or gone).
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old text or the new, never a part of it."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync(path.parent)


def is_store(folder: Path) -> bool:
    """Whether ``folder`` is a store, which it is if it has a manifest."""
    return (folder / MANIFEST).is_file()


def check_version(where: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that is not a store's, or is of a newer major version.

    Raises:
        StoreError: naming the version found and the newest one that can be read.
    """
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{where}: not an activation store (format {manifest.get('format')!r})")
    found = str(manifest.get("version", ""))
    major = found.partition(".")[0]
    if not major.isdecimal():
        raise StoreError(f"{where}: the store's version {found!r} is not MAJOR.MINOR")
    if int(major) > VERSION[0]:
        raise StoreError(
            f"{where}: store version {found} is newer than {VERSION[0]}.x, which this prooflens "
            "reads: install a newer prooflens"
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a store.

    Raises:
        StoreError: if there is none, it is damaged, or its major version is newer.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{folder}: not an activation store (it has no {MANIFEST})") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: the manifest cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise StoreError(f"{path}: the manifest is not a JSON object")
    check_version(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest; a failure leaves the old one."""
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    data = path.read_bytes()
    whole, _, _torn = data.rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise StoreError(f"{path}: line {number} is damaged: {error}") from error
        if not isinstance(entry, dict) or "kind" not in entry:
            raise StoreError(f"{path}: line {number} is not an index entry")
        yield entry


def read_index(folder: Path) -> list[dict[str, Any]]:
    """The entries of the index; an incomplete last line is left out.

    Raises:
        StoreError: if a line that ends in a newline is not an entry.
    """
    return list(_lines(folder / INDEX))


def append_index(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add one line and bring it to the disk. The caller holds the store's lock."""
    line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    descriptor = os.open(folder / INDEX, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rewrite_index(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Replace the index by these entries, whole or not at all: parts in order, then tables."""
    ordered = sorted(entries, key=lambda e: (e["kind"] != "part", e.get("part", 0)))
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in ordered)
    replace_text(folder / INDEX, text)


def store_files(folder: Path) -> list[Path]:
    """Every file in ``folder`` that belongs to a store, temporary ones included."""
    patterns = ("part-*.h5", "measurements-*.h5", f"*{TEMPORARY}", INDEX, MANIFEST)
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})
