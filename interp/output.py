"""Write results: replace a file or a folder, completely or not at all.

    write a draft beside the target → fsync → rename (folders: exchange) → drop the old

A process that dies at any moment leaves either the old result or the new one at its place, and
beside it at most a draft. Drafts are named after the process that writes them
(``.NAME.HOST-PID-START-XXXX.draft``), so that the next run in the same folder recognises those of
dead processes and deletes them. A folder is only replaced if it holds the file that marks it as the
same kind of result, and an input is never replaced by a result that was computed from it.

Drafts of another host are left alone: it cannot be known from here whether their process lives.

Folders are exchanged in one step, which Python's standard library does not offer. Linux has
``renameat2`` with ``RENAME_EXCHANGE``, macOS ``renamex_np`` with ``RENAME_SWAP``: at no moment does
either name lack a folder. On other systems, and on file systems that refuse it, the caller has to
do without.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from interp.environment import ENVIRONMENT, environment_json
from interp.errors import OutputError


def json_data(value: Any) -> Any:
    """Return a value as JSON data: tables as lists of records, numbers that are not finite as null.

    JSON has no NaN: strict readers refuse a text with one.
    """
    if hasattr(value, "to_json"):  # a table of pandas
        return json.loads(value.to_json(orient="records", double_precision=15))
    if isinstance(value, Mapping):
        return {str(key): json_data(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_data(one) for one in value]
    if hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return str(value) if isinstance(value, Path) else value


_HERE, _EXCHANGE, _SWAP = -100, 2, 2
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV}


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names of one file system.

    Returns:
        False if the system cannot; then nothing has changed.

    Raises:
        OSError: if the file system reports an error.
    """
    names = os.fsencode(first), os.fsencode(second)
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(*names, _SWAP)
    elif sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        failed = library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    else:
        return False
    reason = ctypes.get_errno()
    if failed and reason not in _CANNOT:
        raise OSError(reason, os.strerror(reason), str(first), None, str(second))
    return not failed


DRAFT, _ASIDE = ".draft", ".old"
CHECKED = "."  # the marker of a store: its caller looks at what it holds, its manifest tells all
_NAMED = re.compile(
    r"\.(?P<name>.+)\.(?P<host>[\w.]*)-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}"
    rf"(?P<kind>{re.escape(DRAFT)}|{re.escape(_ASIDE)})",
    re.DOTALL,
)
_BLOCK = 4096
_LONGEST = 100  # characters of a target's name that its draft repeats
_WINDOWS = os.name == "nt"
_BINARY = getattr(os, "O_BINARY", 0)
_REFUSALS = {
    errno.ENOSPC,
    errno.EIO,
    getattr(errno, "EDQUOT", errno.ENOSPC),
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
}


def check_output(
    out: Path,
    *,
    overwrite: bool,
    marker: str | None = None,
    inputs: Sequence[Path | str] = (),
    resume: bool = False,
) -> None:
    """Refuse a target that may not be written, before any work is done.

    Drafts that a dead process left beside it are deleted first.

    Args:
        out: The folder or file that will be written.
        overwrite: Whether an existing one may be replaced.
        marker: A file that a folder must hold to be replaced; None for files.
        inputs: Files and folders that the work reads; names that are no path are ignored.
        resume: Whether an interrupted result of the same kind may be continued there.

    Raises:
        OutputError: if the target exists and may not be replaced or continued, is or contains an
            input, or no folder or file can be made where it should be.
    """
    with _refusals_of(out):
        need_name(out)
        out = _real(out)
        parent = next((p for p in out.parents if p.exists()), None)
        if parent is not None and not _takes_files(parent):
            raise OutputError(
                f"cannot write to {out.parent}: {parent} is no folder that can be written; choose "
                "another place"
            )
        if out.parent.is_dir():
            sweep(out.parent)
        if os.path.lexists(out):
            _check_replaceable(out, overwrite, marker, resume)
        _check_apart(out, inputs)


def _takes_files(place: Path) -> bool:
    """Return whether a place is a folder in which a file can be made.

    It is tried: for root every folder seems to be one, those of ``/proc`` and of read-only file
    systems too.
    """
    if not (place.is_dir() and os.access(place, os.W_OK)):
        return False
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def need_name(out: Path) -> None:
    """Refuse ``-`` as a name, because nothing is written to standard output.

    Raises:
        OutputError: if the path is ``-``; use the whole path for a file of that name.
    """
    if str(out) == "-":
        raise OutputError("- is not written to, nor is standard output: name a file or folder")


def _check_apart(out: Path, inputs: Sequence[Path | str]) -> None:
    for given in inputs:
        source = Path(os.path.realpath(given))
        if os.path.lexists(source) and (source == out or out in source.parents):
            raise OutputError(
                f"{out} is not replaced: {given} is read from there; choose another place"
            )


def _check_replaceable(out: Path, overwrite: bool, marker: str | None, resume: bool) -> None:
    if not (overwrite or resume):
        raise OutputError(
            f"{out} exists: choose another name or allow it with overwrite=True (--overwrite)"
        )
    if marker is None:
        if out.is_dir():
            raise OutputError(f"{out} is a folder: name a file")
        if not out.is_file():
            raise OutputError(f"{out} is no regular file: choose another name")
    elif not out.is_dir():
        raise OutputError(f"{out} is not a folder: name one")
    elif any(out.iterdir()) and not (out / marker).exists():
        if resume:
            raise OutputError(
                f"{out} holds nothing to resume, but other things and no {marker}: name the folder "
                "of the interrupted run, or another one without resume=True (--resume)"
            )
        raise OutputError(
            f"{out} is not replaced: it holds other things and no {marker}; choose another folder"
        )


@contextmanager
def output_folder(
    out: Path, *, overwrite: bool, marker: str, inputs: Sequence[Path | str] = ()
) -> Iterator[Path]:
    """Give a draft folder that becomes ``out`` if the ``with`` block ends without an error.

    A file :data:`interp.environment.ENVIRONMENT` is added, which states what the result was made
    with.

    Args:
        out: The folder that will be written.
        overwrite: Whether an existing one may be replaced.
        marker: A file that every such result holds (created if the block does not create it); a
            folder without it is never replaced.
        inputs: Files and folders that the work reads.

    Raises:
        OutputError: before the block as :func:`check_output`; in it and after it if writing fails.
    """
    check_output(out, overwrite=overwrite, marker=marker, inputs=inputs)
    target = _real(out)
    draft = draft_of(target)
    with _refusals_of(out):
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
    try:
        with _refusals_of(out, draft):
            yield draft
            if marker != CHECKED:
                (draft / marker).touch()
                (draft / ENVIRONMENT).write_text(environment_json())
            for folder, _, files in os.walk(draft):
                for name in files:
                    fsync(Path(folder, name))
                fsync(Path(folder))
            settle(draft, target)
    finally:
        drop(draft)


@contextmanager
def output_file(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a draft file that becomes ``out`` if the ``with`` block ends without an error.

    Raises:
        OutputError: before the block as :func:`check_output`; in it and after it if writing fails.
    """
    check_output(out, overwrite=overwrite)
    target = _real(out)
    draft = draft_of(target)
    with _refusals_of(out):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _refusals_of(out, draft):
            yield draft
            fsync(draft)
            settle(draft, target)
    finally:
        drop(draft)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a temporary folder that is deleted when the ``with`` block ends.

    It lies in the system's folder for temporary files. Temporary files and folders of prooflens
    that dead processes left there are deleted first.
    """
    place = Path(tempfile.gettempdir())
    with _refusals_of(place):
        sweep(place)
        draft = draft_of(place / "prooflens")
        draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        drop(draft)


def replace_text(path: Path, text: str) -> None:
    """Replace a small file: a reader sees the old text or the new, never a part of it.

    Raises:
        OSError: if writing fails; then the old text is unchanged.
    """
    draft = draft_of(path)
    try:
        draft.write_text(text, encoding="utf-8")
        fsync(draft)
        settle(draft, path)
    finally:
        drop(draft)


def append_line(path: Path, line: bytes) -> None:
    """Append one line to a file and sync it to the disk; a line that cannot be written whole is
    removed.

    A partial last line of a process that died is removed first. The caller must hold a lock,
    because two writers would mix their lines.

    Raises:
        OSError: if writing fails; then the file is as it was.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o644)
    try:
        before = _whole_lines(descriptor)
        try:
            if os.write(descriptor, line + b"\n") <= len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _whole_lines(descriptor: int) -> int:
    """Remove what follows the last newline, and return the size that is left."""
    size = end = os.fstat(descriptor).st_size
    while end and (block := os.pread(descriptor, min(end, _BLOCK), end - min(end, _BLOCK))):
        if (at := block.rfind(b"\n")) >= 0:
            end += at + 1 - len(block)
            break
        end -= len(block)
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def draft_of(target: Path) -> Path:
    """Return a name for a draft beside ``target``, which contains the process that writes it."""
    return _beside(target, target.name[:_LONGEST], DRAFT)


def _beside(target: Path, name: str, kind: str) -> Path:
    host, pid, start = _self()
    return target.with_name(f".{name}.{host}-{pid}-{start}-{secrets.token_hex(4)}{kind}")


def settle(draft: Path, target: Path) -> None:
    """Put a finished, synced draft in the place of ``target``, and then delete what was there.

    A file takes the place in one rename. A folder is exchanged with the older one in one call. If
    the file system cannot do this, the older one is moved aside first, and the next :func:`sweep`
    puts it back if the process dies before the draft follows.

    Raises:
        OSError: if the file system reports an error; then the old result is unchanged.
    """
    if not (target.is_dir() and any(target.iterdir())):
        os.replace(draft, target)
    elif not exchange(draft, target):
        aside = _beside(target, target.name, _ASIDE)
        os.replace(target, aside)
        try:
            os.replace(draft, target)
        except OSError:
            os.replace(aside, target)
            raise
        drop(aside)
    fsync(target.parent)
    drop(draft)


def fsync(path: Path) -> None:
    """Ask the operating system to write a file's or folder's bytes to the disk.

    Raises:
        OSError: if this fails (the disk is full, or gone).
    """
    if _WINDOWS and path.is_dir():
        return  # folders cannot be opened there, and renames are kept by the journal
    descriptor = os.open(path, os.O_RDWR | _BINARY if _WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop(path: Path) -> None:
    """Delete a draft; if this fails, a later run deletes it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete drafts of dead processes of this host; put back what one of them had moved aside."""
    for name in os.listdir(folder):
        found = _NAMED.fullmatch(name) if name.startswith(".") else None
        if found is None or _lives(found["host"], int(found["pid"]), int(found["start"])):
            continue
        target = folder / found["name"]
        if found["kind"] == _ASIDE and not os.path.lexists(target):
            with suppress(OSError):  # another process swept it first
                os.replace(folder / name, target)
        else:
            drop(folder / name)


@cache
def _host() -> str:
    import socket

    return re.sub(r"\W", "_", socket.gethostname())[:40]


def _self() -> tuple[str, int, int]:
    return _host(), os.getpid(), _start_time(os.getpid()) or 0


def _lives(host: str, pid: int, start: int) -> bool:
    """Return whether the process that a draft is named after may still be writing it."""
    if host != _host():
        return True
    now = _start_time(pid)
    if now is not None:
        return now == start
    return not Path("/proc/self/stat").exists() and psutil.pid_exists(pid)


def _start_time(pid: int) -> int | None:
    """Return a process's start time in the kernel's ticks; None if it is dead or this cannot be
    known."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(rest[18])


def _real(out: Path) -> Path:
    found = Path(os.path.realpath(out))
    if not found.name:
        raise OutputError(f"{out} cannot be replaced: name a folder or file in it")
    return found


@contextmanager
def _refusals_of(place: Path, draft: Path | None = None) -> Iterator[None]:
    """Turn the file system's errors about a place into one line; errors of other files are passed
    on."""
    try:
        yield
    except OSError as error:
        named = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        ours = draft is None or str(draft) in named or (not named and error.errno in _REFUSALS)
        if not ours:
            raise
        raise OutputError(f"cannot write to {place}: {error.strerror or error}") from error
