"""N-gram first: the walks against direct loops, and the rule on made-up trainings."""

from collections import Counter
from math import log

import pandas as pd
import pytest
import torch

from analyses.papers.base import Setting
from analyses.papers.memory import ngram_first
from analyses.papers.memory.ngram_first import measure_induction, stages
from analyses.papers.memory.own_successors import OwnSuccessors, ngram_loss
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

TASK = OwnSuccessors(tokens=6, length=24, own=0.5, jump=0.2)
GRAMS = {1: 2.0, 2: 1.0}


def test_rows_deal_the_successors_of_some_tokens_anew() -> None:
    batch = TASK.sample(40, seed=1)
    inputs, own = batch.inputs, batch.latents["own"]
    dealt = 0
    for row in range(40):
        follow: dict[int, int] = {}
        for t in range(1, 24):
            token, target = int(inputs[row, t]), int(batch.targets[row, t])
            earlier = [j for j in range(1, t + 1) if batch.latents["found"][row, t, j]]
            for j in earlier:
                assert inputs[row, j - 1] == token
                assert follow.setdefault(token, int(inputs[row, j])) == int(inputs[row, j])
            if batch.mask[row, t]:
                assert earlier
                assert follow[token] == target
                assert bool(own[row, t]) == (target != token % 6 + 1)
        dealt += sum(after != token % 6 + 1 for token, after in follow.items())
        assert len(set(follow.values())) == len(follow)  # dealt, not drawn
    assert dealt > 20
    assert not OwnSuccessors(6, 24, 0.0, 0.2).sample(9, seed=0).latents["own"].any()


def test_the_ngram_is_the_counted_one() -> None:
    judged, counted = TASK.sample(20, seed=2), TASK.sample(300, seed=3)

    def grams(batch, n):
        for row, t in batch.mask.nonzero().tolist():
            before = [0] * (n - 2) + batch.inputs[row, : t + 1].tolist()
            yield tuple(before[len(before) - n + 1 :]) if n > 1 else (), int(batch.targets[row, t])

    losses = ngram_loss(TASK, 300, judged, seed=3)
    for n in (1, 2, 3):
        seen = Counter(grams(counted, n))
        context = Counter(before for before, _ in grams(counted, n))
        shares = [(seen[b, y] + 0.1) / (context[b] + 0.7) for b, y in grams(judged, n)]
        assert losses[n] == pytest.approx(-sum(map(log, shares)) / len(shares))


def test_a_fresh_model_does_no_induction() -> None:
    batch = TASK.sample(20, seed=4)
    spec = TransformerSpec(d_in=7, d_out=7, n_ctx=24, d_model=8, n_layers=2, n_heads=1, d_head=8)
    model = SequenceTransformer(spec, seed=0)
    for name, parameter in model.named_parameters():
        if "W_Q" in name:
            torch.nn.init.zeros_(parameter)
    found = measure_induction(model, batch)
    assert found["attention"] == pytest.approx(found["even"], abs=1e-6)
    assert abs(found["cost"]) < 0.5


def training(**changed: list[float]) -> pd.DataFrame:
    columns = {
        "loss": [1.9, 1.1, 1.0, 0.2],
        "attention": [0.1, 0.1, 0.3, 0.9],
        "cost": [0.0, 0.1, 0.5, 3.0],
    }
    return pd.DataFrame({"step": [25, 50, 75, 100], **columns, **changed, "even": 0.1})


@pytest.mark.parametrize(("changed", "expected"), [
    ({}, (50, 100, True)),
    ({"attention": [0.1, 0.3, 0.3, 0.9]}, (50, 100, False)),
    ({"cost": [0.0, 0.4, 0.5, 3.0]}, (50, 100, False)),
    ({"loss": [1.9, 1.2, 1.2, 0.2]}, (100, 100, False)),
    ({"loss": [1.9, 1.2, 1.0, 0.2], "attention": [0.1, 0.1, 0.1, 0.9]}, (75, 100, False)),
    ({"attention": [0.1, 0.1, 0.3, 0.4]}, (50, -1, False)),
    ({"loss": [1.9, 1.8, 1.7, 1.6], "attention": [0.6, 0.6, 0.6, 0.6]}, (-1, 100, False)),
])  # fmt: skip
def test_stages(changed, expected) -> None:
    assert stages(training(**changed), GRAMS) == expected


def test_a_miniature_has_a_row_for_every_kept_step(tmp_path) -> None:
    options = {
        "shares": [0.3, 0.6], "tokens": 6, "length": 16, "jump": 0.1, "d_model": 8, "heads": 2,
        "ffn": 8, "steps": 4, "batch": 4, "learning_rate": 1e-3, "every": 2, "counted": 100,
        "rows": 8,
    }  # fmt: skip
    verdict = ngram_first.run(Setting("quick", (1, 2), options, tmp_path))
    assert verdict.status == "not reproduced"
    assert len(verdict.tables["steps"]) == 4  # one of two seeds failed: that settles it
    assert verdict.tables["stages"]["induction at"].tolist() == [-1] * 2


def test_tasks_without_an_answer_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"tokens must be at least 4.*jump must lie in"):
        OwnSuccessors(3, 24, 0.5, 1.0)
