"""The trained block of the benchmark of roles: which models, and what exchange makes of them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analyses.benchmarks import roles
from analyses.benchmarks.trained_models import (
    FAMILIES,
    SCORED,
    TUNED,
    TrainedFamily,
    reaches_bound,
    runs_of,
)
from analyses.benchmarks.trained_truth import claims_of
from interp.errors import ArgumentError
from interp.tasks.depth import PrefixPrediction
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from probes.locate import LOCATE_COLUMNS
from trained.fit import Fit
from trained.run import check_runs

Row = tuple[str, str, str, int, str, str, float]


def location_table(*rows: Row) -> pd.DataFrame:
    names = ("latent", "component", "circuit", "layer", "heads", "verdict", "changed")
    table = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    return table.reindex(columns=list(LOCATE_COLUMNS))


def test_scored_models_are_other_ones_than_those_that_floors_were_looked_at_on() -> None:
    assert not set(SCORED) & set(TUNED)
    assert len(SCORED) * len(FAMILIES) >= 60
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_families_can_be_trained(family: TrainedFamily) -> None:
    runs = runs_of(family, (SCORED[0], TUNED[0]))
    check_runs(runs)
    assert [run.training.seed for run in runs] == [SCORED[0], TUNED[0]]


def test_a_model_that_did_not_learn_is_left_out() -> None:
    family: Any = next(family for family in FAMILIES if family.reached[0] == "error")
    for error, expected in ((family.reached[1] / 2, True), (family.reached[1] * 2, False)):
        fit = Fit(None, {"error": error}, pd.DataFrame())
        assert reaches_bound(family, fit) == expected


def test_a_head_that_holds_a_memory_is_its_location_and_its_ffn_is_unknown() -> None:
    table = location_table(
        ("x[t-t_1]", "L1H0", "output", 1, "0", "holds", 1.0),
        ("x[t-t_1]", "L1", "output", 1, "0", "holds", 1.0),
        ("t_1", "L1H0", "attention", 1, "0", "holds", 1.0),
        ("f", "L1 FFN", "output", 1, "", "part", 0.6),
        ("f", "L0 FFN", "output", 0, "", "leaves", 0.0),
    )
    claims, unknown, also = claims_of(table, AdaptiveMemory((1, 4), length=8))
    assert claims == {("head", 1, 0, "memory-location", "x[t-t_1]")}
    assert unknown == {("ffn", 1, -1)}
    assert ("head", 1, 0, "previous-token", "") in also


def test_what_only_all_heads_hold_is_a_mixture_of_those_with_a_part() -> None:
    heads = [
        ("memories", f"L0H{h}", "output", 0, str(h), "part", c) for h, c in ((0, 0.6), (1, 0.9))
    ]
    idle = ("memories", "L0H2", "output", 0, "2", "leaves", 0.01)
    whole = ("memories", "L0 heads", "output", 0, "0+1+2", "holds", 1.0)
    task = FixedMemory((1, 3), "multiplexer", length=8)
    claims, unknown, _ = claims_of(location_table(*heads, idle, whole), task)
    assert claims == {("head", 0, h, "memory-mixture", "") for h in (0, 1)}
    assert unknown == {("head", 0, 2)}
    owner = ("x[t-1]", "L0H0", "output", 0, "0", "holds", 1.0)
    claims, *_ = claims_of(location_table(*heads, idle, whole, owner), task)
    assert claims == {("head", 0, 0, "memory-location", "x[t-1]")}


def test_a_count_is_where_the_last_layer_holds_it() -> None:
    rows = [("last", f"L{layer}H0", "output", layer, "0", "holds", 1.0) for layer in (0, 1)]
    claims, unknown, _ = claims_of(location_table(*rows), PrefixPrediction("L_4", ((4, 9),)))
    assert claims == {("head", 1, 0, "counting", "")}
    assert unknown == {("head", 0, 0)}


def test_a_number_of_seeds_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = ["roles", "--profile", "trained", "--folder", str(tmp_path), "--seeds", "101"]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(ArgumentError, match=r"--seeds must be from 1 to 100, got 101"):
        roles.main()
    assert not list(tmp_path.iterdir())
