"""The folder in which a training keeps its states: one process at a time trains there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.errors import OutputError
from interp.lock import LOCK, alone
from interp.output import DRAFT, drop

PLAN = "grid.json"
"""What is written before anything is reached."""
_SUFFIX, _LONGEST = ".partial", 255


@contextmanager
def training_place(folder: str | Path) -> Iterator[Path]:
    """A folder that this process alone trains in; gone again if nothing was reached in it.

    Raises:
        OutputError: if it cannot be made, or another process trains there.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {where}: {error.strerror or error}") from error
    with alone(where, "training in this folder", keep=False):
        for path in where.glob(f".*{DRAFT}"):
            drop(path)
        try:
            yield where
        except Exception:
            if where.is_dir() and not reached(where):
                drop(where)
            raise


def partial_of(out: Path) -> Path:
    """Where states are kept on the way to an output: beside it, under its name; under a digest of
    it where that is as long as a file system's names may be.

    Raises:
        OutputError: for a place that has no name.
    """
    there = Path(os.path.abspath(out)) if out.name in ("", "..") else out
    if not there.name:
        raise OutputError(f"cannot train into {out}: name a folder in it")
    name = os.fsencode(there.name)
    if len(name) + len(_SUFFIX) > _LONGEST:
        return there.with_name(hashlib.sha256(name).hexdigest() + _SUFFIX)
    return there.with_name(there.name + _SUFFIX)


def reached(folder: Path) -> bool:
    """Whether a training that ended or was interrupted left anything in its folder."""
    return folder.is_dir() and not {path.name for path in folder.iterdir()} <= {PLAN, LOCK}
