"""``--data``: rows of one's own for inspect, extract, probe; devices and dtypes that are there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from interp.errors import ArgumentError
from interp.models.placing import placed
from interp.store import ActivationStore
from prooflens.cli.main import app
from trained import zoo

MODEL = "induction-attention"


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 rows of 20 tokens that come back after six to ten."""
    rng = np.random.default_rng(0)
    ids = [rng.permutation(np.arange(1, 32))[: rng.integers(6, 11)].tolist() for _ in range(24)]
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_text("\n".join(json.dumps((block * 4)[:20]) for block in ids))
    return file


def test_models_are_inspected_on_the_rows_given(rows: Path, tmp_path: Path) -> None:
    given = ("inspect", MODEL, "--data", rows, "--dtype", "bfloat16")
    done = run(*given, "--out", tmp_path / "out")
    assert done.exit_code == 0, repr(done.exception)
    assert any("induction: confirmed" in line for line in done.output.splitlines())
    trials = pd.read_csv(tmp_path / "out" / "trials.csv").set_index("trial")
    assert "24 rows of 20 tokens" in (tmp_path / "out" / "report.html").read_text()
    assert trials.loc["rows", "accuracy"] > 0
    both = run("inspect", MODEL, "--data", rows, "--task", "own", "--out", tmp_path / "both")
    assert isinstance(both.exception, ArgumentError)


def test_extract_stores_the_rows_given_with_their_labels(rows: Path, tmp_path: Path) -> None:
    out, hook = tmp_path / "store", "blocks.0.hook_resid_post"
    done = run("extract", MODEL, "--data", rows, "--hooks", hook, "--out", out)
    assert done.exit_code == 0, repr(done.exception)
    store = ActivationStore(out)
    ids = torch.tensor([json.loads(line) for line in rows.read_text().splitlines()])
    _, cache = zoo.load(MODEL).model.run_with_cache(ids, names_filter=hook)
    assert np.allclose(store.activation(hook), cache[hook].detach().numpy(), atol=1e-5)
    both = run("extract", MODEL, "--data", rows, "--task", "own", "--hooks", hook, "--out", out)
    assert "must be one of --task, --tokens, --dataset and --data, got 2" in str(both.exception)


def test_probe_reads_labels_of_the_rows_given(rows: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.npz"
    given = np.array([json.loads(line) for line in rows.read_text().splitlines()])
    np.savez(labels, large=(given > 15).astype(int))
    done = run("probe", MODEL, "--data", rows, "--labels", labels, "--rows", 24)
    assert done.exit_code == 0, repr(done.exception)
    assert "large: first decodable at" in done.output
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(rows.read_text().splitlines()[:6]))
    told = run("probe", MODEL, "--data", few)
    assert "too few rows for nulls, which exchange rows: needs 20, got 6" in str(told.exception)
    uneven = tmp_path / "uneven.jsonl"
    uneven.write_text(rows.read_text() + "\n[1, 2]")
    told = run("probe", MODEL, "--data", uneven, "--labels", labels)
    assert "rows must be of one length for labels" in str(told.exception)


def test_data_is_for_models_of_tokens(rows: Path) -> None:
    told = run("inspect", "fixed-memory-multiplexer", "--data", rows, "--out", rows.parent / "no")
    assert "rows of a file need a model of tokens" in str(told.exception)


def test_a_model_runs_in_bfloat16(tmp_path: Path) -> None:
    rounded = placed(zoo.load(MODEL).model, dtype="bfloat16")
    exact, ids = zoo.load(MODEL).model, torch.arange(1, 21)[None]
    assert rounded(ids).dtype == torch.bfloat16
    wanted = exact(ids).detach()
    off = (rounded(ids).detach().float() - wanted).norm() / wanted.norm()
    assert 0 < float(off) < 0.05
    for option, value in (("--device", "nowhere"), ("--device", "meta")):
        told = run("inspect", MODEL, option, value, "--out", tmp_path / "none")
        assert isinstance(told.exception, ArgumentError)
        assert option[2:] in str(told.exception)
