"""prooflens fits: one clear line for what it refuses, tables and figures for what it does."""

from pathlib import Path

import pandas as pd
import pytest

from analyses.cli.fits import kernel, lag
from interp.errors import ArgumentError, OutputError


def test_lags_are_fitted_and_drawn(tmp_path: Path) -> None:
    lag(tmp_path / "out", lags="1", heads="2")
    table = pd.read_csv(tmp_path / "out" / "fits.csv")
    assert len(table) == 4
    best = table[(table["positions"] == "lin") & (table["heads"] == 2)].set_index("precision")
    assert best.loc["float64", "error"] < best.loc["float32", "error"] < 0.1
    assert (tmp_path / "out" / "lag-errors.png").stat().st_size > 10_000


def test_what_cannot_be_fitted_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"heads must be whole numbers above 0, got '1,x'"):
        lag(tmp_path / "out", lags="1", heads="1,x")
    with pytest.raises(ArgumentError, match="shape must be one of"):
        kernel(["dull(1)"], tmp_path / "out", heads="1")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(OutputError, match="holds other things"):
        lag(tmp_path / "mine", lags="1", heads="1", overwrite=True)
