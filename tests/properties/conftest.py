"""Folders of these tests lie in memory where the system has such a place: no waiting for disks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from readers import make

_MEMORY = Path("/dev/shm")  # noqa: S108


def _folder() -> Iterator[Path]:
    place = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="prooflens-tests-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    yield from _folder()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A good file for every reader."""
    for folder in _folder():
        make(folder)
        yield folder
