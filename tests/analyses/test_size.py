"""The sizes that the benchmark prints are those that other tools count."""

import json
import subprocess
import sys
from pathlib import Path

import prooflens as pl
from analyses.benchmarks.size import PRODUCT, _importers

ROOT = Path(__file__).parents[2]


def test_sizes_are_what_wc_and_find_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analyses", "benchmark", "size"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    product = [file for top in PRODUCT for file in (ROOT / top).rglob("*.py")]
    assert found["product_lines"] == sum(len(f.read_text().splitlines()) for f in product)
    assert found["modules"] == len(product)
    assert found["door_names"] == len((ROOT / "tests/public_names.txt").read_text().split())
    shown = subprocess.run(
        [sys.executable, "-m", "prooflens", "--help"], capture_output=True, text=True, check=True
    )
    listed = shown.stdout.partition("Commands:")[2].partition("Example:")[0].splitlines()
    assert found["commands"] == sum(line[:2] == "  " and line[2:3].isalpha() for line in listed)
    assert found["laboratory_lines"] > 0 < found["test_lines"]


def test_who_imports_a_module_is_told_through_its_package() -> None:
    importers = _importers()
    users = importers["interp.store.extract"]  # offered by the package interp.store
    assert {"interp.store", "prooflens.cli.extract"} <= users
    assert "interp.store.extract" not in users
    assert pl.extract.__module__ == "interp.store.extract"
