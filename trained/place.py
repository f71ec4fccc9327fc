"""The folder in which a training keeps its states: one process at a time trains there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.errors import OutputError
from interp.lock import LOCK, alone
from interp.output import DRAFT, drop

__all__ = ["PLAN", "reached", "training_place"]

PLAN = "grid.json"
"""What is written before anything is reached."""


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


def reached(folder: Path) -> bool:
    """Whether a training that ended or was interrupted left anything in its folder."""
    return folder.is_dir() and not {path.name for path in folder.iterdir()} <= {PLAN, LOCK}
