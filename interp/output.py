"""Write results so that a folder or file appears complete or not at all.

Everything is written to a temporary name beside the target and renamed at the end, so an
interrupted run leaves nothing half-written and an older result stands until the new one is done.
A folder is only ever replaced if it holds the file that marks it as the same kind of result.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.errors import OutputError

__all__ = ["check_output", "output_file", "output_folder"]


def check_output(out: Path, *, overwrite: bool, marker: str | None = None) -> None:
    """Refuse a target that may not be written, before any work is done.

    Args:
        out: The folder or file that will be written.
        overwrite: Whether an existing one may be replaced.
        marker: A file that a folder must hold to be replaced; None for files.

    Raises:
        OutputError: if it exists and may not be replaced, or its parent cannot be a folder.
    """
    parent = next((p for p in out.absolute().parents if p.exists()), None)
    if parent is not None and not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise OutputError(
            f"cannot write to {out.parent}: {parent} is no folder that can be written"
        )
    if not out.exists():
        return
    if not overwrite:
        raise OutputError(f"{out} exists: choose another name or allow overwriting (--overwrite)")
    if marker is None and out.is_dir():
        raise OutputError(f"{out} is a folder: name a file")
    if marker is not None and not out.is_dir():
        raise OutputError(f"{out} is not a folder: name one")
    if marker is not None and any(out.iterdir()) and not (out / marker).exists():
        raise OutputError(
            f"{out} is not replaced: it holds other things and no {marker}; choose another folder"
        )


@contextmanager
def output_folder(out: Path, *, overwrite: bool, marker: str) -> Iterator[Path]:
    """A draft folder that becomes ``out`` when the block ends without an error.

    Args:
        out: The folder that will be written.
        overwrite: Whether an existing one may be replaced.
        marker: A file that every such result holds (made if the block does not make it); a
            folder without it is never replaced.

    Raises:
        OutputError: before the block as :func:`check_output`; after it if the disk refuses.
    """
    out = out.absolute()
    check_output(out, overwrite=overwrite, marker=marker)
    with _told(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield draft
        with _told(out):
            (draft / marker).touch()
            draft.chmod(0o755)
            _replace(out, draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace(out: Path, draft: Path) -> None:
    """Move ``draft`` to ``out``; an older folder is first moved aside and only then deleted."""
    if not out.exists():
        draft.replace(out)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.parent)) / out.name
    out.replace(aside)
    try:
        draft.replace(out)
    except OSError:
        aside.replace(out)
        raise
    finally:
        shutil.rmtree(aside.parent, ignore_errors=True)


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """Turn errors of the disk into one line that names the place; other errors are not changed."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write to {place}: {error.strerror or error}") from error


@contextmanager
def output_file(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A draft file that becomes ``out`` when the block ends without an error.

    Raises:
        OutputError: before the block as :func:`check_output`; after it if the disk refuses.
    """
    check_output(out, overwrite=overwrite)
    draft = out.with_name(f".{out.name}.tmp")
    with _told(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield draft
        with _told(out):
            draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
