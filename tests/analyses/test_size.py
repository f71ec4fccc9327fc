"""The sizes that the benchmark prints are those that other tools count."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import prooflens as pl
from analyses.benchmarks import size
from prooflens.cli.main import app

ROOT = Path(__file__).parents[2]


def test_sizes_are_what_other_tools_count_and_importers_are_told_through_their_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    importers: dict[str, Any] = size._importers()
    users = importers["interp.store.extract"]  # offered by the package interp.store
    assert {"interp.store", "prooflens.cli.extract"} <= users
    assert "interp.store.extract" not in users
    assert pl.extract.__module__ == "interp.store.extract"
    monkeypatch.setattr(size, "_importers", lambda: importers)
    size.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    product = [file for top in size.PRODUCT for file in (ROOT / top).rglob("*.py")]
    assert found["product_lines"] == sum(len(f.read_text().splitlines()) for f in product)
    assert found["modules"] == len(product)
    assert found["door_names"] == len((ROOT / "tests/public_names.txt").read_text().split())
    shown = CliRunner().invoke(app, ["--help"]).stdout
    listed = shown.partition("Commands:")[2].partition("Example:")[0].splitlines()
    assert found["commands"] == sum(line[:2] == "  " and line[2:3].isalpha() for line in listed)
    assert found["laboratory_lines"] > 0 < found["test_lines"]
