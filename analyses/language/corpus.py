"""The text that a language model learns from: the interpreter's own Python sources.

    folder      the standard library of the running interpreter, without its tests
    files       each text once (equal files are found by their SHA-256); a file that is not UTF-8
                is left out
    held out    a file whose digest is divisible by ``held_out``: every reader of the same
                interpreter holds out the same files, and no order or seed decides it

Another interpreter's version has other sources, so it gives another model; the version and the
digest of all texts are recorded with what was trained. Held-out files come from the same library,
often the same package: how the model does on other people's code is another question.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prooflens.errors import ArgumentError

__all__ = ["LIBRARY", "SourceCorpus", "python_sources"]

LIBRARY = "the standard library of "
"""Beginning of a corpus' origin if it is the interpreter's own standard library."""

_TESTS = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")


@dataclass(frozen=True)
class SourceCorpus:
    """Texts to learn from and texts held out.

    Attributes:
        train: The texts to learn from, in the order of their digests.
        held_out: The texts for measuring.
        origin: Where they are from, in words.
        sha256: The digest of all texts of both parts.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    origin: str
    sha256: str


def python_sources(*, held_out: int = 20, folder: Path | None = None) -> SourceCorpus:
    """The Python sources of the running interpreter's standard library, without its tests.

    Args:
        held_out: One file of so many is held out, chosen by its digest.
        folder: Another folder of Python sources.

    Raises:
        ArgumentError: if there are no sources, as where an interpreter ships compiled files alone.
    """
    there = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    texts = dict(sorted(_texts(there)))
    kept = {key: text for key, text in texts.items() if int(key[:8], 16) % held_out}
    apart = {key: text for key, text in texts.items() if key not in kept}
    if not kept or not apart:
        raise ArgumentError(
            f"there are {len(texts)} Python sources under {there}, too few to learn from: use an "
            "interpreter that ships its standard library as text"
        )
    version = ".".join(str(part) for part in sys.version_info[:3])
    origin = (
        f"{LIBRARY}Python {version}, without its tests"
        if folder is None
        else f"the Python sources in {folder}"
    )
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()
    return SourceCorpus(tuple(kept.values()), tuple(apart.values()), origin, digest)


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield digest and text of every source file below a folder, without tests and installed
    packages."""
    for file in folder.rglob("*.py"):
        if set(file.relative_to(folder).parts) & set(_TESTS) or not file.is_file():
            continue
        raw = file.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield hashlib.sha256(raw).hexdigest(), text.replace("\r\n", "\n")
