"""Coupling claims: rules on made-up numbers, and readings of known attention."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.papers.base import Setting
from analyses.papers.coupling import order
from analyses.papers.coupling.order import statements
from analyses.papers.coupling.rank import seed_slopes, self_attending
from analyses.papers.coupling.readable import readings
from analyses.papers.coupling.tasks import IndexedAverage, NearestPoint


def order_table(rnn: list[float], transformer: list[float]) -> pd.DataFrame:
    names = ["exponential, as it is", "exponential, exchanged", "exponential, mixed"]
    names += ["random, as it is", "random, exchanged"]
    rows = [
        {"model": model, "setting": name, "seed": seed, "error": value * (1 + seed)}
        for model, values in (("linear RNN", rnn), ("transformer", transformer))
        for name, value in zip(names, values, strict=True)
        for seed in (0, 1, 2)
    ]
    return pd.DataFrame(rows)


def test_the_papers_own_numbers_satisfy_the_rule_and_others_do_not() -> None:
    paper = [1.02e-7, 3.57e-2, 1.58e-7, 5.58, 5.24], [2.18e-5, 2.51e-5, 2.39e-4, 5.43e-4, 5.36e-4]
    table = order_table(*paper)
    variances = {name: 0.1 if "exp" in name else 5.1 for name in table["setting"]}
    found = statements(table, variances)
    assert all(statement["holds"] for statement in found.values())
    assert found["exchange hurts the RNN"]["value"] == pytest.approx(3.57e-2 / 1.02e-7)
    assert found["the transformer is left as it is"]["value"] == pytest.approx(2 * 2.51e-4)
    worse = statements(order_table(paper[0], [2e-5, 5e-3, 5e-5, 1.0, 1.0]), variances)
    failed = {name for name, statement in worse.items() if not statement["holds"]}
    assert failed == {
        "the transformer is left as it is",
        "transformer better after it",
        "the same on the random kernel",
        "mixing costs the transformer",
    }


def test_the_random_kernel_is_judged_by_a_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for transformer, status in ((0.05, "reproduced"), (0.2, "not reproduced")):
        errors = {"linear RNN": 1.0, "transformer": transformer}
        rows = [(m, "random, as it is", 0, e, e) for m, e in errors.items()]
        table = pd.DataFrame(rows, columns=["model", "setting", "seed", "error", "paper"])
        monkeypatch.setattr(order, "_trained_errors", lambda setting, names, found=table: found)
        assert order.random_kernel(Setting("quick", (0,), {}, tmp_path)).status == status


def test_slopes_are_taken_seed_by_seed() -> None:
    rows = [(m, s, (1 + s) * m ** -(1.0 + s)) for m in (1, 2, 4, 8) for s in (0, 1)]
    table = pd.DataFrame(rows, columns=["m_h", "seed", "error"])
    assert np.allclose(seed_slopes(table), [-1, -2])


def test_where_positions_attend_to_themselves_the_slope_depends_on_what_stands_for_infinity() -> (
    None
):
    slopes = self_attending([1, 2, 4, 8], ranks=(32, 1000))
    assert slopes["32"] < -0.8 < -0.6 < slopes["1000"]


class Fixed(torch.nn.Module):
    """A model whose attention is what it was given."""

    def __init__(self, attention: torch.Tensor) -> None:
        super().__init__()
        self.attention = attention

    def run_with_cache(self, inputs: torch.Tensor, names_filter: list[str]) -> tuple[None, Any]:
        return None, {names_filter[0]: self.attention[:, None]}


def test_readings_are_one_for_the_right_attention_and_low_for_an_even_one() -> None:
    batch = IndexedAverage(3, 8).sample(20, seed=0)
    right = readings(Fixed(batch.latents["coupling"]), batch)
    assert right == {"found": 1.0, "distance": 0.0}
    even = readings(Fixed(torch.full((20, 8, 8), 1 / 8)), batch)
    assert even["distance"] == pytest.approx(5 / 8)
    points = NearestPoint().sample(20, seed=1)
    attention = torch.nn.functional.one_hot(points.latents["nearest"], 12).float()
    assert readings(Fixed(attention), points)["found"] == 1
    attention[0, 3] = attention[0, 3].roll(1)
    assert readings(Fixed(attention), points)["found"] == pytest.approx(1 - 1 / 240)
