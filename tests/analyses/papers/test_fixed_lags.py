"""What fixed lags cannot do, against least squares; what gating costs, against counting."""

import numpy as np
import pytest
import torch

from analyses.papers.memory.fixed_lags import fixed_lag_floor, gating_costs
from interp.errors import ArgumentError
from interp.proofs.memory import construct_gated_memory
from interp.tasks.memory import AdaptiveMemory

TASKS = [
    AdaptiveMemory((1, 2, 4), rounds=1, inputs="gaussian"),
    AdaptiveMemory((1, 3), rounds=2, readout="mean", inputs="gaussian"),
    AdaptiveMemory((1, 2), rounds=3, readout="parity"),
    AdaptiveMemory((1, 2, 3), rounds=1, concurrent=2, readout="table", readout_seed=2),
    AdaptiveMemory((1, 2, 3), rounds=0, concurrent=2, readout="multiplexer", bits=3),
]


def least_squares(task: AdaptiveMemory) -> tuple[float, float]:
    """(variance of y, mean squared error of the best fit on every lag and channel)."""
    batch = task.sample(12_000, seed=1)
    last, reach = batch.inputs.shape[1] - 1, 2 * max(task.locations) + 2
    features = batch.inputs[:, last - reach :].flatten(1).double().numpy()
    features = np.column_stack([features, np.ones(len(features))])
    y = batch.targets[:, last, 0].double().numpy()
    weights, *_ = np.linalg.lstsq(features[:6000], y[:6000], rcond=None)
    return float(y.var()), float(((y - features @ weights)[6000:] ** 2).mean())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_floor_is_what_least_squares_reaches(task: AdaptiveMemory) -> None:
    floor, (variance, reached) = fixed_lag_floor(task), least_squares(task)
    assert floor.variance == pytest.approx(variance, rel=0.06, abs=0.02)
    assert floor.floor == pytest.approx(reached, rel=0.08, abs=0.01)


@pytest.mark.parametrize(("locations", "bits"), [((1, 2), 2), ((1, 2, 3, 5), 2), ((1, 4), 4)])
def test_the_floor_of_one_memory_is_one_minus_the_shares(
    locations: tuple[int, ...], bits: int
) -> None:
    floor = fixed_lag_floor(AdaptiveMemory(locations, bits=bits))
    assert floor.floor == pytest.approx(1 - 1 / len(locations), abs=1e-12)
    assert floor.share == floor.floor / floor.variance
    assert floor.weights == pytest.approx({(lag, 0): 1 / len(locations) for lag in locations})


def test_floors_that_are_no_finite_sum_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"readout must be single or mean .*got 'maximum'"):
        fixed_lag_floor(AdaptiveMemory((1, 2), rounds=2, readout="maximum", inputs="gaussian"))
    with pytest.raises(ArgumentError, match="at most 65536 ways"):
        fixed_lag_floor(AdaptiveMemory((1, 2), rounds=5, readout="mean", bits=5))


@pytest.mark.parametrize(
    "task",
    [
        AdaptiveMemory((1, 2, 4)),
        AdaptiveMemory((1, 3), readout="parity"),
        AdaptiveMemory((1, 2, 3), rounds=0, concurrent=2, readout="multiplexer", bits=3),
    ],
    ids=lambda task: task.name,
)
@torch.no_grad()
def test_a_gating_ffn_is_exact_where_no_fixed_lag_is(task: AdaptiveMemory) -> None:
    construction = construct_gated_memory(task)
    batch = task.sample(200, seed=3)
    wrong = (construction.model(batch.inputs) - batch.targets)[batch.mask]
    assert float(wrong.abs().max()) <= construction.certificate.error < 1e-12
    assert fixed_lag_floor(task).share > 0.4
    assert construction.model.spec.score == "none"
    assert construction.model.spec.n_heads == sum(lag + 1 for lag in task.locations)


def test_gating_costs_grow_with_the_sum_of_the_locations() -> None:
    costs = gating_costs(4)
    gated, shifted = (costs[costs["way"] == way] for way in ("gated", "shifted"))
    assert gated["heads"].tolist() == [5, 9, 14]
    assert shifted["heads"].tolist() == [3, 4, 5]
    assert gated["layers"].eq(1).all()
    assert shifted["layers"].eq(2).all()
    assert (costs["slot_error"] < 0.1).all()


def test_rounds_and_real_values_are_refused() -> None:
    nested = AdaptiveMemory((1, 2), rounds=2, readout="mean", inputs="gaussian")
    with pytest.raises(ArgumentError, match=r"one sequential round.*inputs must be signs"):
        construct_gated_memory(nested)
    with pytest.raises(ArgumentError, match=r"below 0\.5 in float64 \(lag 1: .*lag 9"):
        construct_gated_memory(AdaptiveMemory((1, 9)))
    with pytest.raises(ArgumentError, match="largest must be at least 2"):
        gating_costs(1)
