"""Heads over training: each revision's numbers are its own, in the order given."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from interp.errors import ArgumentError, CheckpointError
from interp.weights.revisions import head_weights_at, opened_revisions, weights_over_training
from interp.weights.weight_table import weight_table
from prooflens.pages.over_training import training_findings, training_lines
from trained import zoo

FOLDER = zoo.folder("code-lm")
ASKED = ("trace_share", "k_composition")
ORDER = ["step-900", "main", "step-500"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return weights_over_training(FOLDER, ORDER, ASKED)


def test_each_revision_is_the_table_of_its_folder(table: pd.DataFrame) -> None:
    assert list(dict.fromkeys(table["revision"])) == ORDER
    for revision, folder in (("step-500", FOLDER / "step-500"), ("main", FOLDER)):
        mine = table[table["revision"] == revision].drop(columns="revision")
        pd.testing.assert_frame_equal(mine.reset_index(drop=True), weight_table(folder, ASKED))


def test_lines_are_the_scores_in_the_order_given(table: pd.DataFrame) -> None:
    lines = {line.title: line for line in training_lines(table, told=3)}
    qk = lines["QK: trace share"]
    for column, revision in enumerate(ORDER):
        scores = weight_table(head_weights_at(FOLDER, revision), ["trace_share"])
        wanted = scores[scores["circuit"] == "QK"]["score"].to_numpy()
        np.testing.assert_array_equal(qk.values[:, column], wanted)
    moved = np.ptp(qk.values, axis=1)
    assert list(qk.told) == [qk.heads[i] for i in np.argsort(-moved)[:3]]
    np.testing.assert_allclose(qk.high, 3 / 64, rtol=0.5)  # one deviation of random bases is 1/n
    pairs = lines["K-composition: strongest writer"]
    rows = table[(table["metric"] == "k_composition") & (table["revision"] == "main")]
    best = (rows["score"] / rows["null_mean"]).groupby([rows["layer"], rows["head"]]).max()
    np.testing.assert_allclose(pairs.values[:, ORDER.index("main")], best.to_numpy())


def test_findings_tell_the_first_and_the_last(table: pd.DataFrame) -> None:
    said = training_findings(table, told=1)
    shares = table[(table["metric"] == "trace_share") & (table["circuit"] == "QK")]
    wide = shares.pivot(index=["layer", "head"], columns="revision", values="score")
    layer, head = (wide["step-500"] - wide["step-900"]).abs().idxmax()
    before, after = wide.loc[(layer, head), ["step-900", "step-500"]]
    told = f"QK trace_share moves most from step-900 to step-500: L{layer}H{head} ({before:+.3f}"
    assert f"{told} → {after:+.3f})." in said
    assert said[0].startswith("QK: of 24 heads a clear diagonal")


def test_one_revision_has_nothing_to_compare_with() -> None:
    table = weights_over_training(FOLDER, ["main"], ["trace_share"])
    assert all("moves" not in line for line in training_findings(table))


@pytest.mark.parametrize(
    ("revisions", "error", "told"),
    [
        (
            ["step-400"],
            CheckpointError,
            "no checkpoint 'step-400': name some of step-500, step-900",
        ),
        (["main", "main"], ArgumentError, r"named once each, got \['main'\]"),
        ([""], ArgumentError, "must name checkpoints"),
    ],
)
def test_what_is_not_there_is_told_first(
    revisions: list[str], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        opened_revisions(FOLDER, revisions)


def test_revisions_of_other_sizes_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(FOLDER / file, tmp_path / name / file)
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps(config | {"n_layer": 2}))
    with pytest.raises(CheckpointError, match=r"b of .* has other sizes than a"):
        opened_revisions(tmp_path, ["a", "b"])
