"""A write lock: one process at a time may write a store, and the lock ends with the process.

The lock is ``flock`` on the file ``.lock`` in the store. A killed process leaves the file but
not the lock, so nothing has to be cleaned up by hand. On a network file system whose ``flock`` is
local to each machine it protects against processes of one machine only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.errors import StoreError
from interp.store.layout import LOCK

__all__ = ["writing"]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the store's write lock while the block runs.

    Raises:
        StoreError: if another process holds it; the message names that process.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise StoreError(
                f"{folder}: another process (pid {holder}) is writing this store: wait for it, "
                "or write to another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
