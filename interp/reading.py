"""The checks that every file of a user's passes when it is read.

Only regular files are read (a FIFO would block for ever, ``/dev/zero`` has no end), of a bounded
size, in UTF-8, as JSON or TOML of bounded depth with numbers of at most 64 bits and no NaN.
Anything else is refused in one sentence before memory is taken. The schema of each kind of file
then checks the contents (:mod:`interp.schema`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, ProoflensError
from interp.schema import faults

MOST_BYTES = 64 << 20
_DEEPEST = 64
_LARGEST = 2**64 - 1
_LONG = re.compile(r"\d{19}")
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
"""Flags with which files are opened: do not wait (for a pipe, say), do not pass the file to child
processes, do not translate line ends. A system that lacks one of them goes without it."""

Error = type[ProoflensError]


def open_regular(path: str | Path) -> int:
    """Open a regular file for reading and return its file descriptor.

    Anything else, such as a named pipe, is refused without blocking.

    Raises:
        OSError: if the file does not exist, cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "is no regular file", str(path))


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a regular file's bytes, in hexadecimal.

    Raises:
        OSError: as :func:`open_regular`, or if it cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def regular(path: str | Path, what: str, error: Error) -> None:
    """Refuse anything but a regular file, before a library opens it.

    Raises:
        ProoflensError: of the class ``error``.
    """
    try:
        os.close(open_regular(path))
    except OSError as refused:
        raise error(f"{what} {path} cannot be read: {refused.strerror}") from refused


@contextmanager
def utf8_name(path: str | Path) -> Iterator[str]:
    """Give a name of a regular file for libraries that take UTF-8 only: its own, or its
    descriptor's.

    Raises:
        OSError: if the name is not UTF-8 and the file cannot be opened.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        descriptor = open_regular(path)
        try:
            yield f"/dev/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        yield os.fspath(path)


def read_bytes(
    path: str | Path, what: str = "", error: Error = ArgumentError, *, most: int = MOST_BYTES
) -> bytes:
    """Return a regular file's bytes.

    Args:
        path: The file.
        what: What the error message calls the file, such as ``recipe``.
        error: The class of the error that is raised.
        most: The largest allowed size in bytes.

    Raises:
        ProoflensError: of the class ``error``, naming the file and the reason.
    """
    subject = f"{what} {path}".strip()
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            data = stream.read(most + 1)
    except OSError as refused:
        raise error(f"{subject} cannot be read: {refused.strerror or refused}") from refused
    if len(data) > most:
        raise error(f"{subject} cannot be read: it has more than {most / 2**20:.0f} MiB")
    return data


def read_text(
    path: str | Path, what: str = "", error: Error = ArgumentError, *, most: int = MOST_BYTES
) -> str:
    """Read a text file in UTF-8, with or without a byte-order mark.

    Args:
        path: The file.
        what: What the error message calls the file, such as ``recipe``.
        error: The class of the exception that is raised.
        most: The largest allowed size in bytes.

    Raises:
        ProoflensError: of the class ``error``, if the file cannot be read, is too large, is no
            regular file or is not valid UTF-8. The message names the file and the reason.
    """
    data = read_bytes(path, what, error, most=most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as refused:
        subject = f"{what} {path}".strip()
        raise error(f"{subject} cannot be read: it is not UTF-8 text ({refused.reason})") from None


def parse_json(
    data: str | bytes, subject: str, error: Error = ArgumentError, shape: Any = None
) -> Any:
    """Parse JSON of bounded depth, with numbers of at most 64 bits and no NaN.

    Args:
        data: The JSON text.
        subject: The place that an error message names, such as ``manifest.json``.
        error: The class of the error that is raised.
        shape: The required form, for :func:`interp.schema.faults`; None for any.

    Raises:
        ProoflensError: of the class ``error``, with every fault.
    """
    return _parse_or_raise(lambda: _json(data), "JSON", subject, error, shape)


def read_json(
    path: str | Path,
    what: str = "",
    error: Error = ArgumentError,
    shape: Any = None,
) -> Any:
    """Return the parsed JSON of a file, read by :func:`read_bytes` and parsed by
    :func:`parse_json`."""
    data = read_bytes(path, what, error)
    return parse_json(data, f"{what} {path}".strip(), error, shape)


def read_toml(
    path: str | Path, what: str = "", *, most: int = MOST_BYTES
) -> tuple[dict[str, Any], str]:
    """Return a file's parsed TOML and its text; ``most`` bounds the file's size in bytes."""
    said = read_text(path, what, most=most)
    return parse_toml(said, f"{what} {path}".strip()), said


def parse_toml(text: str, subject: str, error: Error = ArgumentError) -> dict[str, Any]:
    """Parse TOML with the same bounds as :func:`parse_json`.

    Raises:
        ProoflensError: of the class ``error``.
    """
    found: dict[str, Any] = _parse_or_raise(lambda: _toml(text), "TOML", subject, error, None)
    return found


def _parse_or_raise(
    parse: Callable[[], Any], kind: str, subject: str, error: Error, shape: Any
) -> Any:
    try:
        found = parse()
    except RecursionError:
        raise error(f"{subject} cannot be read: it is nested deeper than {_DEEPEST}") from None
    except ValueError as refused:
        raise error(f"{subject} cannot be read: no {kind} that is taken: {refused}") from refused
    if shape is not None and (wrong := faults(shape, found, "it")):
        more = f"; and {len(wrong) - 5} more" * (len(wrong) > 5)
        raise error(f"{subject} is damaged: " + "; ".join(wrong[:5]) + more)
    return found


def _json(data: str | bytes) -> Any:
    text = data if isinstance(data, str) else data.decode("utf-8-sig")
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte-order mark")
    found = _DECODER.decode(text)
    # Of most lines the text alone shows that depth and numbers are within bounds.
    if text.count("[") + text.count("{") > _DEEPEST or _LONG.search(text):
        _check_bounds(found)
    return found


def _toml(text: str) -> Any:
    found = tomllib.loads(text)
    _check_bounds(found)
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _check_bounds(value: Any) -> None:
    """Check depth and numbers level by level, so that a deep value needs no deep stack."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, int) and not -_LARGEST <= item <= _LARGEST:
                raise ValueError("a number has more than 64 bits")
        level = below
        if not level:
            return
    raise RecursionError


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
