"""Which parts does a store have? Its index says, or the one file into which it was consolidated.

Most parts of a store have the same hooks, and often the same shapes: equal ones are kept once, so
that an index of a hundred thousand parts costs some tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp.errors import StoreError
from interp.reading import parse_json
from interp.store import layout
from interp.store.files import Files, SealedPart
from interp.store.hdf5 import read_words, reading
from interp.store.schemas import consolidated_faults

__all__ = ["consolidated_parts", "folder_parts"]

Shapes = Mapping[str, tuple[int, ...]]
_NONE: Mapping[str, int] = {}


def folder_parts(folder: Path) -> list[SealedPart]:
    """The sealed parts that a folder's index names.

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
        parts.append(SealedPart(folder, entry["file"], "/", ranges, shared, overflows))
    return parts


def consolidated_parts(files: Files, path: Path) -> tuple[dict[str, Any], list[SealedPart]]:
    """The manifest and the parts of a file that ``consolidate`` made.

    Raises:
        StoreError: if it is another file, damaged, or of a newer major version.
    """
    file = files.get(path)
    lacking = reading(str(path), lambda: [n for n in ("manifest", "index") if n not in file])
    if lacking:
        raise StoreError(f"{path}: not a consolidated store (it has no manifest and index)")
    texts = {name: read_words(file, name) for name in ("manifest", "index")}
    manifest = parse_json(texts["manifest"], f"{path}: manifest", StoreError)
    layout.check_manifest(path, manifest)
    entries = parse_json(texts["index"], f"{path}: index", StoreError, consolidated_faults)
    return manifest, [
        SealedPart(
            path.parent,
            path.name,
            e["group"],
            tuple((a, b) for a, b in e["rows"]),
            {name: tuple(shape) for name, shape in e["shapes"].items()},
            e["overflows"],
        )
        for e in entries
    ]
