"""Which parts does a store have? Its index says.

Most parts of a store have the same hooks, and often the same shapes: equal ones are kept once, so
that an index of a hundred thousand parts costs some tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from interp.store import layout
from interp.store.files import SealedPart

__all__ = ["folder_parts"]

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
        parts.append(SealedPart(folder, entry["file"], ranges, shared, overflows))
    return parts
