"""Checkpoints of one training inspected in turn: each as by itself, and one page on all."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from prooflens.errors import ArgumentError, CheckpointError, OutputError
from prooflens.inspection import inspect
from prooflens.over_training import inspect_over_training
from trained.loading import folder_of

SMALL = {"count": 8, "length": 32}


@pytest.mark.slow
def test_each_checkpoint_is_inspected_as_by_itself_and_a_series_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "series"
    found = inspect_over_training("code-lm", ["step-900", "main"], out, **SMALL)
    last = found.roles[found.roles["revision"] == "main"].drop(columns="revision")
    alone = inspect(folder_of("code-lm"), **SMALL).roles
    pd.testing.assert_frame_equal(last.reset_index(drop=True), alone)
    induction = next(line for line in found.findings if line.startswith("Confirmed as induction"))
    assert "none at step-900; L2H" in induction
    assert (out / "step-900" / "report.html").is_file()
    text = (out / "report.html").read_text()
    assert induction in text
    assert "main/report.html" in text
    again = inspect_over_training("code-lm", ["step-900", "main"], out, resume=True, **SMALL)
    assert again.findings == found.findings
    assert (out / "report.html").read_text() == text


def test_what_cannot_be_done_is_told_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="name some of step-500, step-900, main"):
        inspect_over_training("code-lm", ["main", "step-7"], tmp_path / "a")
    with pytest.raises(ArgumentError, match="must be named once each"):
        inspect_over_training("code-lm", ["main", "main"], tmp_path / "a")
    for name in ("a/b", "a-b"):
        (tmp_path / "model" / name).mkdir(parents=True)
    with pytest.raises(ArgumentError, match="must be names of different folders"):
        inspect_over_training(tmp_path / "model", ["a/b", "a-b"], tmp_path / "a")
    with pytest.raises(ArgumentError, match="must give at least 4 pieces"):
        inspect_over_training("code-lm", ["main"], tmp_path / "a", text="a sentence")
    with pytest.raises(ArgumentError, match="beside revisions"):
        inspect_over_training("code-lm", ["main"], tmp_path / "a", revision="step-500")
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".prooflens-inspect").touch()
    with pytest.raises(OutputError, match="inspection of one checkpoint"):
        inspect_over_training("code-lm", ["main"], tmp_path / "b")


@pytest.mark.slow
def test_the_command_prints_what_changed(tmp_path: Path, told: Any, refused: Any) -> None:
    few = ("--out", tmp_path / "out", "--rows", 8, "--length", 32)
    asked = ("inspect", "code-lm", "--revisions", "step-500", *few, "--json")
    found = json.loads(told(*asked))
    assert {row["revision"] for row in found["roles"]} == {"step-500"}
    assert found["findings"][0].startswith("Loss on repeated rows")
    assert "exists: choose another name" in refused(*asked)
    assert json.loads(told(*asked, "--resume"))["findings"] == found["findings"]
