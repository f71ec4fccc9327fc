"""List the parts of a store, from its index or from the one file it was consolidated into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from interp.errors import StoreError
from interp.store import layout
from interp.store.files import Files, SealedPart

__all__ = ["consolidated_parts", "folder_parts"]


def folder_parts(folder: Path) -> list[SealedPart]:
    """The sealed parts that a folder's index names.

    Raises:
        StoreError: if the index is damaged.
    """
    entries = layout.read_index(folder)
    return [_sealed(folder, entry) for entry in entries if entry["kind"] == "part"]


def _sealed(folder: Path, entry: dict[str, Any]) -> SealedPart:
    try:
        return SealedPart(
            folder / entry["file"],
            "/",
            tuple((int(a), int(b)) for a, b in entry["rows"]),
            {name: tuple(shape) for name, shape in entry["shapes"].items()},
            entry.get("overflows", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder}: the index entry {entry!r} is damaged: {error}") from error


def consolidated_parts(files: Files, path: Path) -> tuple[dict[str, Any], list[SealedPart]]:
    """The manifest and the parts of a file that ``consolidate`` made.

    Raises:
        StoreError: if it is another file, or of a newer major version.
    """
    file = files.get(path)
    if "manifest" not in file:
        raise StoreError(f"{path}: not a consolidated store (it has no manifest)")
    manifest = json.loads(file["manifest"].asstr()[()])
    layout.check_version(path, manifest)
    entries = json.loads(file["index"].asstr()[()])
    return manifest, [
        SealedPart(
            path,
            e["group"],
            tuple((a, b) for a, b in e["rows"]),
            {name: tuple(shape) for name, shape in e["shapes"].items()},
            e["overflows"],
        )
        for e in entries
    ]
