import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from interp.models.baselines import MLPSpec
from interp.models.kinds import build
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from interp.tasks.base import Batch
from probes.probe_table import Probing, first_decodable, probe_source
from prooflens.pages.probing import findings
from trained import zoo

NAME = "fixed-memory-multiplexer"


def test_probing_a_shipped_model_writes_table_and_map(tmp_path: Path, told: Any) -> None:
    out = tmp_path / "probes"
    said = told("probe", NAME, "--task", "own", "--rows", 60, "--out", out)
    assert "first decodable at blocks.0.hook_resid_post" in said
    table = pd.read_csv(out / "probes.csv")
    assert set(table["hook"]) == {
        "hook_embed", "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post",
    }  # fmt: skip
    data = json.loads((out / "probes.json").read_text())
    assert len(data["probes"]) == len(table)
    assert data["task"]["kind"] == "fixed_memory"
    assert (out / "layers.png").stat().st_size > 5000
    page = (out / "report.html").read_text()
    best = table[(table["latent"] == "f") & (table["hook"] == "blocks.0.hook_resid_post")].iloc[0]
    found = f"f can first be read at blocks.0.hook_resid_post: score {best['score']:.2f}."
    assert page.index(found) < page.index("What would have to be doubted") < page.index("<table")
    assert "x[t] can be read from the raw input as well." in page


def test_each_row_may_be_scored_elsewhere(told: Any) -> None:
    said = told("probe", "induction-attention", "--rows", 60, "--hooks", "hook_embed")
    assert "previous: nowhere clearly decodable (best score" in said


def test_a_recurrent_network_is_probed_at_its_own_hooks(told: Any) -> None:
    said = told("probe", "coupling-order-rnn", "--rows", 20, "--latents", "x")
    assert "at layers.0.hook_state" in said
    assert "not compared with" not in said


def test_two_fractions_are_classes_too(told: Any) -> None:
    """Weights of a coupling take two values at the last position."""
    arguments = ("coupling-order-transformer", "--rows", 20, "--hooks", "hook_embed")
    assert "coupling[0]: " in told("probe", *arguments, "--interchange")


def test_what_has_no_position_axis_is_left_out_by_name() -> None:
    model = build(MLPSpec(d_in=3, d_out=1, n_ctx=5, hidden=(4,)), seed=0)
    tokens = torch.randint(3, (40, 5), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, tokens, torch.ones(40, 5, dtype=torch.bool), {"x": tokens * 1.0})
    found = probe_source(model, batch)
    assert found.about["hooks"] == ["hook_embed"]
    assert found.table["untrained"].notna().all()
    left = "hook_features, hidden.0.hook_pre, hidden.0.hook_post"
    assert findings(found)[-1] == f"not probed, since they have no position axis: {left}"


def test_hooks_come_in_the_order_of_the_network(tmp_path: Path) -> None:
    shipped = zoo.load(NAME)
    batch = shipped.task.sample(40, seed=0)
    wanted = ["*mlp_out", "*resid_mid"]
    store = extract(shipped.model, batch, wanted, tmp_path / "s", batch=20)
    order = ["blocks.0.hook_resid_mid", "blocks.0.hook_mlp_out"]
    for source, rows in ((shipped.model, batch), (store, None)):
        found = probe_source(source, rows, hooks=wanted, latents=["x[t-1]"])
        assert found.table["hook"].tolist() == order == found.about["hooks"]
        assert found.first["hook"].tolist() == order[:1]


def test_a_star_lists_the_hooks(told: Any) -> None:
    lines = told("probe", NAME, "--hooks", "*").splitlines()
    assert lines[:2] == ["hook_embed  pos 32 × d_model 16",
                         "blocks.0.hook_resid_pre  pos 32 × d_model 16"]  # fmt: skip
    pattern = "blocks.0.attn.hook_pattern  head 2 × query 32 × key 32  (cannot be probed)"
    assert pattern in lines
    assert lines[-1].startswith("ln_final.hook_normalized")


def test_interchange_is_written(tmp_path: Path, told: Any) -> None:
    out = tmp_path / "probes"
    arguments = ("--rows", 80, "--latents", "f", "--interchange", "--out", out)
    said = told("probe", NAME, *arguments)
    assert "f exchanged at blocks.0.hook_resid_post" in said
    assert " the output, which moves " in said
    assert pd.read_csv(out / "interchange.csv")["latent"].tolist() == ["f"]


def test_a_store_gets_interchange_and_its_probes_are_drawn_again(tmp_path: Path, told: Any) -> None:
    shipped = zoo.load(NAME)
    store = extract(
        shipped.model, shipped.task, ["*resid_post"], tmp_path / "s", rows=60, batch=30,
        positions="last", about={"model": NAME},
    )  # fmt: skip
    arguments = ("--latents", "f", "--interchange")
    told("probe", store.path, *arguments)
    assert set(store.measurements) == {"probes", "interchange"}
    assert store.measurement("probes")["positions"].tolist() == ["31"]
    told("store", "--figures", store.path, "--out", tmp_path / "figures")
    drawn = {file.name for file in (tmp_path / "figures").glob("*.??g")}
    assert drawn == {"probes.png", "probes.svg"}


def test_positions_restrict_what_is_sampled() -> None:
    shipped = zoo.load(NAME)
    batch = shipped.task.sample(60, seed=0)
    hooks, latents = ["blocks.0.hook_resid_post"], ["f"]
    for text, told in (("20", "20"), ("last", "31"), ("20:30:4", "20,24,28"), ("-2", "30")):
        found = probe_source(shipped.model, batch, hooks=hooks, latents=latents, positions=text)
        assert found.table["positions"].tolist() == [told]
        assert found.about["positions"] == told


def test_a_store_of_some_positions_gives_what_the_whole_one_gives_there(tmp_path: Path) -> None:
    shipped = zoo.load(NAME)
    batch, hook = shipped.task.sample(60, seed=0), "blocks.0.hook_resid_post"
    stores = [
        extract(shipped.model, batch, [hook], tmp_path / name, batch=25, positions=name)
        for name in ("all", "20:30:2")
    ]
    whole, some = (probe_source(s, None, positions="18:26").table for s in stores)
    assert whole["positions"].iloc[0] == "18,19,20,21,22,23,24,25"
    assert some["positions"].iloc[0] == "20,22,24"
    there = probe_source(stores[0], None, positions="20:26:2").table
    pd.testing.assert_frame_equal(some, there)


def exchange_finding(**cells: float) -> str:
    usual = {
        "latent": "x", "hook": "h", "pairs": 60, "moved": 0.9, "placebo": 0.1, "changed": 0.9,
        "placebo_changed": 0.1, "low": 0.7, "high": 0.9, "q": 1e-6,
    }  # fmt: skip
    found = replace(probing({}), interchange=pd.DataFrame([usual | cells]))
    return findings(found)[-1]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({}, "x exchanged at h leads the output, which moves 0.90 of the way"),
        ({"moved": 0.3}, "has a part in the output"),
        ({"placebo": 0.8}, "has a part in the output"),
        ({"q": 0.2}, "is not seen to be used for the output"),
        ({"moved": 0.0, "changed": 0.0}, "does not change the output, which"),
        ({"moved": float("nan"), "pairs": 3}, "cannot be told, only 3 pairs"),
    ],
)
def test_an_exchange_is_told_in_a_sentence(cells: dict[str, float], said: str) -> None:
    assert said in exchange_finding(**cells)


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
