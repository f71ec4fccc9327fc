import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.stats.head_table import (
    ANY_TARGET,
    COLUMNS,
    adjust,
    complete_table,
    head_table,
    score_row,
)
from interp.stats.nulls import Null


def row(p: float, head: int = 0, *, metric: str = "m", null: str = "", **about: str) -> dict:
    against = Null(0.25, 0.1, p, null)
    return score_row(metric, 1.0, against, component="head", layer=0, head=head, **about)


def test_a_family_is_all_components_put_to_one_test() -> None:
    rows = [row(p, head=h) for h, p in enumerate([0.01, 0.02, 0.5])]
    others = {"metric": "other", "circuit": "QK", "target": "x", "site": "s", "method": "zero",
              "null": "signs", "trial": "text"}  # fmt: skip
    for name, value in others.items():
        rows.append(row(0.02, **{name: value}))
    table = head_table(rows)
    assert tuple(table.columns) == COLUMNS
    assert table["q"].tolist() == pytest.approx([0.03, 0.03, 0.5, *[0.02] * len(others)])
    assert table["effect"].tolist() == [0.75] * len(table)


def test_a_search_over_targets_is_one_family() -> None:
    rows = [row(0.01, target="lag 0"), row(0.5, target="lag 1")]
    assert head_table(rows)["q"].tolist() == [0.01, 0.5]
    assert head_table(rows, family=ANY_TARGET)["q"].tolist() == [0.02, 0.5]


def test_columns_that_do_not_apply_are_filled() -> None:
    scores = {"component": "ffn", "layer": [0, 1], "metric": "m", "score": 1.0, "null_mean": 0.5,
              "null_std": 0.1, "p": [0.01, 0.5]}  # fmt: skip
    table = complete_table(pd.DataFrame(scores))
    assert tuple(table.columns) == COLUMNS
    assert table["q"].tolist() == [0.02, 0.5]
    assert table["head"].tolist() == [-1, -1]
    assert table["trial"].tolist() == ["", ""]
    assert table["low"].isna().all()


def test_an_empty_table_has_the_columns() -> None:
    assert tuple(head_table([]).columns) == COLUMNS


def test_missing_p_counts_for_nothing() -> None:
    q = adjust(np.array([0.01, np.nan, 0.04]))
    assert q[0] == 0.02
    assert np.isnan(q[1])


@settings(deadline=None)
@given(st.lists(st.floats(1e-10, 1), min_size=1, max_size=30))
def test_q_is_the_least_share_of_false_discoveries_over_thresholds(ps: list[float]) -> None:
    """Against the definition: min over thresholds t ≥ p of m·t / #{p ≤ t}, at most 1."""
    p = np.array(ps)
    slow = [min(min(len(p) * t / (p <= t).sum() for t in p if t >= one), 1.0) for one in p]
    np.testing.assert_allclose(adjust(p), slow, atol=1e-12)
