"""What a page calls the model that it is about.

A shipped model or one of the hub keeps its name. A folder is called by the end of its path; the
whole path stands in the small print.
"""

from __future__ import annotations

from pathlib import Path

from trained.shipped_names import languages, names

_STORE = "store"
"""The folder in which commands keep a store: the folder around it says more."""


def page_name(name: str) -> str:
    """What a page about a model, or a store, calls it."""
    place = Path(name)
    if name in (*names(), *languages()) or not (place.is_absolute() or place.is_dir()):
        return name
    parts = place.resolve().parts
    return "/".join(parts[-2:] if parts[-1] == _STORE else parts[-1:])
