"""A write lock on a folder: one process at a time, released when its holder dies.

The lock is :mod:`filelock`'s (the operating system's own) on the file ``.lock`` in the folder,
which also says who holds it: host and process. A killed process leaves the file but not the lock,
so nothing has to be cleaned up by hand. On a network file system without such locks it protects
against processes of one machine only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from interp.errors import OutputError, ProoflensError

LOCK = ".lock"


@contextmanager
def alone(
    folder: Path, doing: str, *, error: type[ProoflensError] = OutputError, keep: bool = True
) -> Iterator[None]:
    """Hold a folder's write lock inside the ``with``.

    Args:
        folder: The folder, which must exist.
        doing: What the holder does, for the error message: ``writing this store``.
        error: The class of the error that is raised if the lock is not free.
        keep: Whether to leave the lock's file behind, as in a store; otherwise it is deleted with
            the lock.

    Raises:
        ProoflensError: of the class ``error``, naming the process and the host that hold the lock;
            or if the folder cannot be written.
    """
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise error(
            f"{folder}: another process ({_holder(folder)}) is {doing}: wait for it, or write to "
            "another folder"
        ) from None
    except OSError as refused:
        raise error(f"{folder} cannot be locked: {refused.strerror or refused}") from refused
    try:
        _sign(folder)
        yield
    finally:
        if not keep and _holder(folder) == _own_name():  # the folder may be another's by now
            with suppress(OSError):
                (folder / LOCK).unlink()
        lock.release()


def _holder(folder: Path) -> str:
    try:
        said = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        said = ""
    return said[:200] or "unknown"


def _own_name() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _sign(folder: Path) -> None:
    """Write the holder's name into the lock's file, without a rename, because the lock is on this
    very file."""
    descriptor = os.open(folder / LOCK, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _own_name().encode())
    except OSError:
        return  # a full disk costs only the name
    finally:
        os.close(descriptor)
