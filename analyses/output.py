"""Where results go: a folder that appears whole or not at all.

Everything is written to a temporary folder beside the target and renamed at the end, so an
interrupted run leaves nothing half-written and an older result stands until the new one is done.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.errors import OutputError

__all__ = ["output_folder"]


@contextmanager
def output_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A draft folder that becomes ``out`` when the block ends without an error.

    Raises:
        OutputError: before the block, if ``out`` exists and may not be replaced, or its parent
            cannot be written.
    """
    if out.exists() and not overwrite:
        raise OutputError(f"{out} exists: choose another folder or pass --overwrite")
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is not a folder: choose another one")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {out.parent}: {error.strerror}") from error
    try:
        yield draft
        draft.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        os.replace(draft, out)
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
