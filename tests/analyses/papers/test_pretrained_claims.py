"""The claim about top-diagonal heads runs wherever the model is, and says when it cannot."""

from pathlib import Path

import numpy as np
import pytest

from analyses.papers.base import Setting
from analyses.papers.pretrained.in_context_copying import run
from interp.models.export import export_gpt2
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from trained import zoo

SPEC = TransformerSpec(
    d_in=32, d_out=32, n_ctx=32, d_model=64, n_layers=2, n_heads=4, d_head=16,
    norm="layernorm", positions="learned",
)  # fmt: skip
OPTIONS = {"heads": 2, "rows": 8, "length": 32, "draws": 6}


def setting(folder: Path, model: str) -> Setting:
    return Setting("quick", (1, 2), {**OPTIONS, "model": model}, folder)


def test_without_gpt2_it_runs_on_what_stands_in_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROOFLENS_MODEL", raising=False)
    export_gpt2(zoo.load("induction-attention").model, tmp_path / "model", bos=0)
    monkeypatch.setattr("trained.zoo.stand_in", lambda: tmp_path / "model")
    verdict = run(setting(tmp_path, str(tmp_path / "no")))
    assert verdict.words.startswith("Repeated random tokens, on code-lm:")
    assert verdict.status in ("reproduced", "partly", "not reproduced")
    table = verdict.tables["ablations"]
    repeated = table[table["trial"] == "repeated"]
    assert set(repeated["circuit"]) == {"QK", "OV"}
    assert set(repeated["seed"]) == {1, 2}
    assert np.isfinite(repeated[["rise", "matched_mean"]].to_numpy()).all()
    for circuit, passed in verdict.numbers["passed"].items():
        part = repeated[repeated["circuit"] == circuit]
        beaten = (part["share_beaten"] >= 0.95).all() and (part["rise"] >= 0.05).all()
        assert passed == beaten
    assert all(len(heads) <= 2 for heads in verdict.numbers["heads"].values())
    assert verdict.drawings


def test_it_is_not_run_without_the_model_or_the_ability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROOFLENS_MODEL", str(tmp_path / "nowhere"))
    absent = run(setting(tmp_path, "gpt2"))
    assert absent.status == "not run"
    assert "Needs a pretrained model" in absent.words
    export_gpt2(SequenceTransformer(SPEC, seed=3), tmp_path / "random", bos=0)
    monkeypatch.setenv("PROOFLENS_MODEL", str(tmp_path / "random"))
    unable = run(setting(tmp_path, "gpt2"))
    assert unable.status == "not run"
    assert "does not continue repeated random tokens" in unable.words
