import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from analyses.cli.main import main
from analyses.inspection.probing import Probing, findings, probe_source
from interp.models import build
from interp.models.baselines import MLPSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from interp.tasks.base import Batch
from probes.rounds import first_decodable
from trained import zoo

NAME = "fixed-memory-multiplexer"


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["prooflens", "probe", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_probing_a_shipped_model_writes_table_and_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "probes"
    assert run(NAME, "--task", "own", "--rows", 60, "--out", out, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "first decodable at blocks.0.hook_resid_post" in said
    table = pd.read_csv(out / "probes.csv")
    assert set(table["hook"]) == {
        "hook_embed", "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post",
    }  # fmt: skip
    data = json.loads((out / "probes.json").read_text())
    assert len(data["probes"]) == len(table)
    assert data["task"]["kind"] == "fixed_memory"
    assert (out / "layers.png").stat().st_size > 5000


def test_a_store_gets_the_table_sealed_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = zoo.load(NAME)
    store = extract(shipped.model, shipped.task, ["hook_embed"], tmp_path / "s", rows=60, batch=30)
    assert run(store.path, monkeypatch=monkeypatch) == 0
    assert store.measurement("probes")["hook"].unique().tolist() == ["hook_embed"]


def test_each_row_may_be_scored_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--task", "own", "--rows", 60, "--hooks", "hook_embed")
    assert run("induction-attention", *arguments, monkeypatch=monkeypatch) == 0
    assert "previous: nowhere clearly decodable (best score" in capsys.readouterr().out


def test_a_recurrent_network_is_probed_at_its_own_hooks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("coupling-order-rnn", "--rows", 20, "--latents", "x")
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "at layers.0.hook_state" in said
    assert "not compared with" not in said


def test_what_has_no_position_axis_is_left_out_by_name() -> None:
    model = build(MLPSpec(d_in=3, d_out=1, n_ctx=5, hidden=(4,)), seed=0)
    tokens = torch.randint(3, (40, 5), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, tokens, torch.ones(40, 5, dtype=torch.bool), {"x": tokens * 1.0})
    found = probe_source(model, batch)
    assert found.about["hooks"] == ["hook_embed"]
    assert found.table["untrained"].notna().all()
    left = "hook_features, hidden.0.hook_pre, hidden.0.hook_post"
    assert findings(found)[-1] == f"not probed, since they have no position axis: {left}"


def test_hooks_come_in_the_order_of_the_network() -> None:
    shipped = zoo.load(NAME)
    batch = shipped.task.sample(40, seed=0)
    found = probe_source(shipped.model, batch, hooks=["*mlp_out", "*resid_mid"], latents=["x[t-1]"])
    order = ["blocks.0.hook_resid_mid", "blocks.0.hook_mlp_out"]
    assert found.table["hook"].tolist() == order == found.about["hooks"]
    assert found.first["hook"].tolist() == order[:1]


def test_hooks_of_a_store_come_in_the_order_of_the_network(tmp_path: Path) -> None:
    shipped = zoo.load(NAME)
    batch = shipped.task.sample(40, seed=0)
    wanted = ["*mlp_out", "*resid_mid"]
    store = extract(shipped.model, batch, wanted, tmp_path / "s", batch=20)
    found = probe_source(store, None, hooks=wanted, latents=["x[t-1]"])
    assert found.about["hooks"] == ["blocks.0.hook_resid_mid", "blocks.0.hook_mlp_out"]


def test_a_star_lists_the_hooks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(NAME, "--hooks", "*", monkeypatch=monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["hook_embed  pos 32 × d_model 16",
                         "blocks.0.hook_resid_pre  pos 32 × d_model 16"]  # fmt: skip
    pattern = "blocks.0.attn.hook_pattern  head 2 × query 32 × key 32  (cannot be probed)"
    assert pattern in lines
    assert lines[-1].startswith("ln_final.hook_normalized")


def probing(*rows: dict[str, object]) -> Probing:
    usual = {
        "hook": "h", "latent": "x", "kind": "real", "score": 0.4, "null_mean": 0.1, "q": 1e-9,
        "null_std": 0.1, "control": 0.0, "selectivity": 0.4, "input": 0.0, "over_input": 0.4,
        "untrained": 0.1, "over_untrained": 0.3,
    }  # fmt: skip
    table = pd.DataFrame([usual | row for row in rows])
    return Probing(table, first_decodable(table), {})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "nowhere clearly decodable (best score 0.40, at h, below 0.9)"),
        ({"over_input": 0.01}, "below 0.9); not above the raw input (0.39)"),
        ({"score": 0.01, "over_input": 0.0, "selectivity": 0.01},
         "nowhere clearly decodable (best score 0.01, at h, below 0.9)"),
        ({"kind": "constant"}, "nothing to decode, it has one value at all sampled positions"),
        ({"score": 1.0, "q": 1.0, "null_mean": 1.0, "null_std": 0.0},
         "(best score 1.00, at h; 1.00 with rows exchanged, q 1): it is the same in every row"),
        ({"score": 1.0, "q": 0.02, "selectivity": 0.0},
         "with rows exchanged, q 0.02): rows are too few; not above the control task (1.00)"),
        ({"score": 1.0, "over_input": 0.0, "over_untrained": 0.0},
         "random weights 0.10); not above the raw input (1.00), random weights (1.00)"),
    ],
)  # fmt: skip
def test_findings_give_the_reason(row: dict[str, object], said: str) -> None:
    (line,) = findings(probing(row))
    assert line.startswith("x: ")
    assert said in line
    assert ("not above" in said) == ("not above" in line)


def test_an_absent_baseline_is_told() -> None:
    lines = findings(probing({"untrained": float("nan"), "over_untrained": float("nan")}))
    assert lines[-1].startswith("random weights: not compared with (only our own models")


def test_a_given_fresh_model_is_the_baseline(tmp_path: Path) -> None:
    shipped = zoo.load(NAME)
    batch = shipped.task.sample(40, seed=0)
    store = extract(shipped.model, batch, ["hook_embed"], tmp_path / "s", batch=20)
    fresh = SequenceTransformer(shipped.model.spec, seed=1)
    found = probe_source(store, None, latents=["f"], untrained=fresh)
    assert found.table["untrained"].notna().all()
    assert not any(line.startswith("random weights") for line in findings(found))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fixed-memory-multiplexor",), "did you mean the shipped fixed-memory-multiplexer?"),
        ((NAME, "--task", "own", "--hooks", "nothing*"), "hooks: --hooks '*' lists them"),
        (
            (NAME, "--task", "own", "--hooks", "blocks.0.attn.hook_pattern"),
            "probes read hooks of [row, pos, …], got blocks.0.attn.hook_pattern [row, head, query,",
        ),
        ((NAME, "--task", "own", "--latents", "g"), "latents must be among x[t]"),
    ],
)
def test_refusals_are_one_line(
    arguments: tuple[str, ...],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments, "--rows", 20, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
