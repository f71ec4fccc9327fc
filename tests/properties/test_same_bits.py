"""The same command with the same seed writes the same bytes: from another process, in one place.

The two processes order sets differently (``PYTHONHASHSEED``) and share nothing. What a clock says
is left out: :mod:`every_command` stops it. On two threads, which share sums.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from every_command import CALLS

PLACE = Path(__file__)


def files(home: Path) -> dict[str, bytes]:
    """Every file; a lock says which process held it."""
    found = [path for path in sorted(home.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def command_outputs(home: Path, hashes: str) -> dict[str, bytes]:
    """What the commands write into ``home``, which is moved away afterwards."""
    paths = os.pathsep.join([str(PLACE.parents[2]), str(PLACE.parents[1])])
    told = {"PYTHONHASHSEED": hashes, "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(
        [sys.executable, str(PLACE.with_name("every_command.py")), str(home)],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr
    found = files(home)
    home.rename(home.with_name(f"home-{hashes}"))
    return found


def tells(found: dict[str, bytes], result: str) -> bool:
    """Whether a file of the result, or beside it, tells threads and BLAS."""
    beside = f"{result.partition('.')[0]}.environment.json"
    return any(
        b"threads" in data and b"blas" in data and b"scikit-learn" in data
        for name, data in found.items()
        if name in (result, beside) or name.startswith(f"{result}/")
    )


@pytest.mark.slow
def test_every_command_writes_the_same_bytes_and_what_it_was_made_with(tmp_path: Path) -> None:
    one, two = (command_outputs(tmp_path / "home", hashes) for hashes in ("1", "2"))
    assert [name for name in {*one, *two} if one.get(name) != two.get(name)] == []
    results = [word[6:] for words in CALLS.values() for word in words if word[:6] == "--out="]
    assert [result for result in results if not tells(one, result)] == []
