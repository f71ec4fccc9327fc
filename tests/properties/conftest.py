"""Folders of these tests lie in memory where the system has such a place: no waiting for disks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")  # noqa: S108


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    place = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="prooflens-tests-", dir=place) as folder:
        yield Path(folder)
