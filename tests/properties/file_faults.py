"""Stops a process after any of its file operations, or lets the disk refuse one.

A command runs in a forked child in which every operation that changes files under a folder is
counted: opening for writing, writing to a descriptor, making, renaming, exchanging, removing,
fsyncing, and what HDF5 and safetensors do outside Python. At the operation with a given number the
child ends as by SIGKILL, once the operation is done (a write: half done); or the operation raises
ENOSPC or EIO instead of being done. Nothing depends on the clock.
"""

import builtins
import contextlib
import errno
import io
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
from forked_calls import Child, Ended

import interp.models.tensor_files
import interp.output

KILLED = 137
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Stopped(Ended):
    """How a child ended, and the operations that it came to."""

    operations: tuple[str, ...] = ()


class Faults:
    """Counts operations under ``root`` and lets number ``at`` (from 1) go wrong in one way."""

    def __init__(self, root: Path, at: int, way: str, log: int) -> None:
        self.root, self.at, self.way, self.log = str(root), at, way, log
        self.numbers = itertools.count(1)  # of all threads together

    def wrap(self, owner: Any, name: str, path: Callable[..., Any] = lambda *a, **_: a[0]) -> None:
        original = getattr(owner, name)

        def count_call(*arguments: Any, **options: Any) -> Any:
            where = self._under(path(*arguments, **options))
            if where is None:
                return original(*arguments, **options)
            number = next(self.numbers)
            os.pwrite(self.log, f"{name} {where}\n".encode(), os.fstat(self.log).st_size)
            if number != self.at:
                return original(*arguments, **options)
            if self.way != "kill":
                code = getattr(errno, self.way)
                raise OSError(code, os.strerror(code), where)
            if name == "write":
                arguments = (arguments[0], arguments[1][: len(arguments[1]) // 2])
            try:
                original(*arguments, **options)
            finally:
                os._exit(KILLED)

        setattr(owner, name, count_call)

    def _under(self, path: Any) -> str | None:
        if path is None:
            return None
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        where = os.path.abspath(os.fsdecode(path))
        return where if where.startswith(self.root + "/") else None

    def install(self) -> None:
        self.wrap(os, "fsync")
        self.wrap(os, "write")
        self.wrap(os, "ftruncate")
        self.wrap(os, "open", lambda p, flags, *a, **_: p if flags & _WRITES else None)
        for name in ("mkdir", "unlink", "remove", "rmdir", "replace", "rename"):
            self.wrap(os, name, _in_folder)
        self.wrap(interp.output, "exchange")
        self.wrap(interp.models.tensor_files, "save_file", lambda tensors, file, **_: file)
        self.wrap(h5py.File, "__init__", lambda self, file, mode="r", **_: _if_writing(file, mode))
        self.wrap(
            h5py.File, "close", lambda f: f.filename if f.id.valid and f.mode != "r" else None
        )
        for owner in (builtins, io):
            self.wrap(owner, "open", lambda p, mode="r", *a, **_: _if_writing(p, mode))


def _if_writing(path: Any, mode: str) -> Any:
    return path if set(mode) & set("wax+") and not isinstance(path, int) else None


def _in_folder(path: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> Any:
    """``shutil.rmtree`` names what it removes in an open folder."""
    if dir_fd is None:
        return path
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))


def run(root: Path, work: Callable[[], None], at: int = 0, way: str = "kill") -> Stopped:
    """Run ``work`` in a child; with ``at``, its operation of that number goes wrong."""
    with tempfile.TemporaryFile() as operations:

        def work_with_faults() -> None:
            os.environ["TMPDIR"] = tempfile.tempdir = str(root / "tmp")
            Faults(root, at, way, operations.fileno()).install()
            work()

        ended = Child(work_with_faults).end()
        operations.seek(0)
        found = operations.read().decode(errors="replace").splitlines()
    return Stopped(ended.code, ended.said, ended.seconds, tuple(found))


def warm(work: Callable[[], None]) -> None:
    """Do the work here once: what it imports, no child has to import again."""
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        work()
