"""The library's front door: what it offers is a decision, written down in public_names.txt."""

import subprocess
import sys
from pathlib import Path

import interp

STORED = (Path(__file__).parent / "public_names.txt").read_text().split()


def test_names_are_the_stored_ones() -> None:
    assert interp.__all__ == STORED


def test_every_name_is_there_and_documented() -> None:
    for name in interp.__all__:
        assert getattr(interp, name).__doc__, name


def test_importing_interp_and_trained_loads_nothing_heavy() -> None:
    code = "import sys, interp, trained; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
