"""``--data``: rows of one's own for inspect, extract, probe; devices and dtypes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp.models.placing import place_model
from interp.store import ActivationStore
from trained import zoo

MODEL = "induction-attention"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 rows of 20 tokens that come back after six to ten."""
    rng = np.random.default_rng(0)
    ids = [rng.permutation(np.arange(1, 32))[: rng.integers(6, 11)].tolist() for _ in range(24)]
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_text("\n".join(json.dumps((block * 4)[:20]) for block in ids))
    return file


def test_models_are_inspected_on_the_rows_given(rows: Path, tmp_path: Path, told: Any) -> None:
    given = ("inspect", MODEL, "--data", rows, "--dtype", "bfloat16")
    assert "induction: confirmed" in told(*given, "--out", tmp_path / "out")
    trials = pd.read_csv(tmp_path / "out" / "trials.csv").set_index("trial")
    assert "24 rows of 20 tokens" in (tmp_path / "out" / "report.html").read_text()
    assert trials.loc["rows", "accuracy"] > 0


def test_extract_stores_the_rows_given_with_their_labels(
    rows: Path, tmp_path: Path, told: Any
) -> None:
    out, hook = tmp_path / "store", "blocks.0.hook_resid_post"
    told("extract", MODEL, "--data", rows, "--hooks", hook, "--out", out)
    store = ActivationStore(out)
    ids = torch.tensor([json.loads(line) for line in rows.read_text().splitlines()])
    _, cache = zoo.load(MODEL).model.run_with_cache(ids, names_filter=hook)
    assert np.allclose(store.activation(hook), cache[hook].detach().numpy(), atol=1e-5)


def test_probe_reads_labels_of_the_rows_given(rows: Path, tmp_path: Path, told: Any) -> None:
    labels = tmp_path / "labels.npz"
    given = np.array([json.loads(line) for line in rows.read_text().splitlines()])
    np.savez(labels, large=(given > 15).astype(int))
    said = told("probe", MODEL, "--data", rows, "--labels", labels, "--rows", 24)
    assert "large: first decodable at" in said


def test_a_model_runs_in_bfloat16() -> None:
    rounded = place_model(zoo.load(MODEL).model, dtype="bfloat16")
    exact, ids = zoo.load(MODEL).model, torch.arange(1, 21)[None]
    assert rounded(ids).dtype == torch.bfloat16
    wanted = exact(ids).detach()
    off = (rounded(ids).detach().float() - wanted).norm() / wanted.norm()
    assert 0 < float(off) < 0.05
