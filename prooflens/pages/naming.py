"""What a page calls the models that it is about.

A shipped model or one of the hub keeps its name. A folder is called by the end of its path, by as
much of it as tells several apart; the whole path stands in the small print.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trained.loading import models

__all__ = ["page_name", "page_names"]

_STORE = "store"
"""The folder in which commands keep a store: the folder around it says more."""


def page_name(name: str) -> str:
    """What a page about one model, or one store, calls it."""
    return page_names([name])[0]


def page_names(names: Sequence[str]) -> list[str]:
    """What a page calls several models side by side."""
    parts = [_parts(name) for name in names]
    count = 2 if any(path[-1] == _STORE for path in parts) else 1
    longest = max(len(path) for path in parts)
    while count < longest and len({path[-count:] for path in parts}) < len(set(parts)):
        count += 1
    return ["/".join(path[-count:]) for path in parts]


def _parts(name: str) -> tuple[str, ...]:
    place = Path(name)
    folder = place.is_absolute() or place.is_dir()
    return place.resolve().parts if folder and name not in models() else (name,)
