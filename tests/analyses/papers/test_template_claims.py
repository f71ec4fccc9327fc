"""Template claims: the rules on made-up numbers, and parts with oracles."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from analyses.papers.base import Setting
from analyses.papers.experiment import Experiment, interval
from analyses.papers.ledger import read_ledger
from analyses.papers.template import relations
from analyses.papers.template.copying import _verdict
from analyses.papers.template.heads import share_without, statements, worst_first
from analyses.papers.template.models import (
    count_unfitted,
    fewest_strings,
    fitted_runs,
    spec_of,
    unfitted_verdict,
)
from analyses.papers.template.sweeps import verdict_of, with_readout
from analyses.papers.template.unseen_unembeddings import mean_cosine, shared_move
from interp.models.transformer import SequenceTransformer
from interp.tasks.template.task import same_different

TINY: dict[str, Any] = {"d_model": 8, "heads": 2, "d_head": 4, "ffn": 8, "multiplier": 10.0}


def test_runs_that_do_not_fit_are_left_out() -> None:
    table = pd.DataFrame(
        {"model": ["plain", "plain", "+ aI"], "train_accuracy": [1.0, 0.98, 0.5], "accuracy": 0.1}
    )
    assert fitted_runs(table).index.tolist() == [0]
    assert count_unfitted(table) == {"plain": 1, "+ aI": 1}
    found = unfitted_verdict(table)
    assert found is not None
    assert found.status == "not run"
    assert "(+ aI)" in found.words
    assert unfitted_verdict(table[:2]) is None


def test_a_relation_is_compared_among_runs_that_fit(tmp_path, monkeypatch) -> None:
    rows = [
        ("majority", "plain", 1.0, 0.1),
        ("majority", "with scalars", 1.0, 0.95),
        ("match-to-sample", "plain", 0.7, 0.5),
        ("match-to-sample", "with scalars", 1.0, 0.95),
    ]
    table = pd.DataFrame(rows, columns=["task", "model", "train_accuracy", "accuracy"])
    monkeypatch.setattr(Experiment, "run", lambda self: (table, []))
    quick = dict(read_ledger()["template-relations"].profiles["quick"])
    options = quick | {"named": ["majority", "match-to-sample"], "sets": []}
    found = relations.relations(Setting("quick", (1,), options, tmp_path))
    assert found.numbers["learned"] == ["majority", "match-to-sample"]
    assert found.numbers["helped"] == ["majority"]
    assert found.status == "partly"
    assert "match-to-sample 0.95 (no run fits without)" in found.words


def test_rows_that_move_alike_collapse() -> None:
    start = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    pairs = torch.nn.functional.cosine_similarity(start[:, None], start[None], dim=-1)
    apart = pairs[~torch.eye(64, dtype=torch.bool)].mean()
    assert mean_cosine(start) == pytest.approx(float(apart), abs=1e-6)
    assert mean_cosine(start + 100) > 0.99
    assert shared_move(torch.full((64, 32), 0.3)) == pytest.approx(1)
    assert shared_move(start) < 0.05


def test_strings_needed_stay_at_the_level() -> None:
    rows = [("a", 8, 0.95), ("a", 16, 0.5), ("a", 32, 0.9), ("a", 64, 1.0), ("b", 8, 0.1),
            ("b", 64, 0.95), ("b", 64, 0.8)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["model", "n", "accuracy"])
    assert fewest_strings(table, accuracy=0.9) == {"a": 32, "b": float("inf")}


@pytest.mark.parametrize(
    ("plain", "scalar", "status"),
    [
        ((0.9, 0.1), (1.0, 0.95), "reproduced"),
        ((0.9, 0.8), (1.0, 0.95), "partly"),
        ((0.9, 0.1), (1.0, 0.5), "partly"),
        ((0.9, 0.8), (1.0, 0.5), "not reproduced"),
        ((0.9, None), (1.0, 0.5), "not run"),
        ((0.9, None), (1.0, 0.95), "partly"),
        ((0.9, 0.1), (1.0, None), "partly"),
    ],
)
def test_copying_is_judged_by_its_rule(plain: Any, scalar: Any, status: str) -> None:
    rows = [dict(zip(("32", "256"), values, strict=True)) for values in (plain, scalar)]
    assert _verdict(*rows, 32, 256, "+ bI")[0] == status


def test_a_readout_token_is_the_last_of_every_row_and_leaves_the_labels() -> None:
    task = same_different(train=(0, 8), test=(8, 16))
    read = with_readout(task)
    batch = read.unseen().sample(50, seed=1)
    assert read.regular == ("→",)
    assert (batch.inputs[:, -1] == 0).all()
    assert (batch.inputs[:, :2] > 8).all()  # unseen symbols, after the token's id
    same = batch.inputs[:, 0] == batch.inputs[:, 1]
    assert ((batch.targets[:, -1, 0] > 0) == same).all()


def test_heads_go_worst_first() -> None:
    """A made-up layer: each head is worth a share, and half of what is left when head 2 is gone."""
    worth = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}

    def worth_without(gone: Sequence[int]) -> float:
        left = sum(share for head, share in worth.items() if head not in gone)
        return left / 2 if 2 in gone else left

    assert list(worst_first(worth_without, 4)) == pytest.approx([0.35, 0.15, 0.05, 0.0])


@pytest.mark.parametrize(
    ("kept", "none_needed", "to_go"),
    [((1, 0.95, 0.9, 0.6, 0.1), True, 1.0), ((1, 0.95, 0.3, 0.2, 0.1), True, 0.5),
     ((1, 0.4, 0.3, 0.2, 0.0), False, 0.25), ((1, 1, 1, 1, 1), True, 1.0)],
)  # fmt: skip
def test_what_removals_say_of_heads(kept: Any, none_needed: bool, to_go: float) -> None:
    table = pd.DataFrame({"model": "plain", "seed": 1, "gone": range(5), "kept": kept})
    found = statements(table, 4).iloc[0]
    assert found["none_needed"] == none_needed
    assert found["to_go"] == to_go
    assert found["many_to_go"] == (to_go >= 0.25)


def test_a_head_goes_with_its_mean_in_its_place() -> None:
    task = same_different(train=(0, 8), test=(8, 16))
    model = SequenceTransformer(spec_of(task, TINY), seed=3)
    batch = task.sample(64, seed=1)
    found, right = share_without(model, batch), batch.targets[:, -1, 0] > 0

    def mean(value: Tensor, hook: Any) -> Tensor:
        value[:, :, 1] = value[:, :, 1].mean(0)
        return value

    with torch.no_grad():
        whole = (model(batch.inputs)[:, -1, 0] > 0).eq(right).double().mean()
        output = model.run_with_hooks(batch.inputs, fwd_hooks=[("blocks.0.attn.hook_z", mean)])
    less = (output[:, -1, 0] > 0).eq(right).double().mean()
    assert found([1]) == pytest.approx(float((less - 0.5) / (whole - 0.5)))
    assert found([]) == 1.0


def test_an_effect_is_kept_where_its_interval_is_above_zero() -> None:
    gains = {"clear": (0.1, 0.12, 0.11), "noisy": (0.3, -0.1, 0.1), "no room": (0.1, 0.1, 0.1)}
    rows = [
        {
            "variation": name,
            "model": model,
            "seed": seed,
            "accuracy": right,
            "train_accuracy": 1.0,
        }
        for name, found in gains.items()
        for seed, gain in enumerate(found)
        for start in [0.95 if name == "no room" else 0.6]
        for model, right in (("plain", start), ("+ aI", start + gain))
    ]
    rows.append({**rows[0], "variation": "unfitted", "train_accuracy": 0.5})
    found = verdict_of(pd.DataFrame(rows), "interval", lambda g: interval(g)[0] > 0)
    assert found.status == "partly"
    assert "1 of 2" in found.words
    for told in ("Not with: noisy", "No room: no room", "No seed that fits with both: unfitted"):
        assert told in found.words
    assert found.numbers["intervals"]["clear"] == pytest.approx((0.0852, 0.1348), abs=1e-3)
    clear = pd.DataFrame([row for row in rows if row["variation"] == "clear"])
    assert verdict_of(clear, "interval", lambda g: interval(g)[0] > 0).status == "reproduced"
    once = [row for row in rows if row["variation"] == "clear" and row["seed"] == 0]
    found = verdict_of(pd.DataFrame(once), "interval", lambda g: interval(g)[0] > 0, least=2)
    assert found.status == "not run"
    assert "Fewer than 2 seeds that fit with both: clear" in found.words
