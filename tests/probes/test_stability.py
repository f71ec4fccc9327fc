"""Stability by exact resampling of few rows, and what a head is by what is lost without it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from probes.roles.change import over_rows
from probes.roles.decision import Found, Test, decide, halves, stability

GOOD = Test("share", 0.9, 0.6, 1e-6)


def loss(rows: np.ndarray, **more: object) -> Test:
    test = over_rows(rows).test("without it the loss rises by", 0.05, "loss")
    return replace(test, loss=True, alone=True, **more)


@pytest.mark.parametrize("seed", range(4))
def test_stability_is_the_share_of_all_resamples(seed) -> None:
    rows = np.random.default_rng(seed).normal(0.07, 0.05, 5)
    exact = np.mean([np.mean(drawn) >= 0.05 for drawn in product(rows, repeat=5)])
    assert stability([loss(rows)]) == pytest.approx(exact, abs=4 * 0.5 / 200**0.5)


def test_rows_are_resampled_together_and_tests_without_rows_stay() -> None:
    rows = np.random.default_rng(1).normal(0.05, 0.05, 24)
    assert stability([loss(rows), loss(rows)]) == stability([loss(rows)]) < 1
    assert stability([loss(rows), loss(0.11 - rows)]) < stability([loss(rows)])
    assert stability([GOOD, loss(rows)]) == stability([loss(rows)])
    assert stability([replace(GOOD, score=0.5), loss(rows)]) == 0.0


def test_halves_agree_where_all_rows_are_alike_and_not_where_one_row_decides() -> None:
    assert halves([loss(np.linspace(0.4, 0.5, 16))]) == 1.0
    one_row = np.r_[4.0, np.zeros(15)]
    assert halves([loss(one_row)]) == 0.0, "one half has the row, the other has not"
    assert np.isnan(halves([GOOD]))


def head(*cause: Test, **more: object) -> Found:
    return Found("head", 0, "induction", 0.9, (GOOD,), cause, head=1, **more)


def test_what_other_rows_might_not_confirm_is_a_candidate() -> None:
    sure, unsure = np.full(32, 0.4) + 0.01 * np.arange(32), np.r_[[0.9] * 6, np.zeros(26)]
    unsure = unsure + 0.06 + 0.001 * np.arange(32)
    table = decide([head(loss(sure)), head(loss(unsure))])
    assert list(table["status"]) == ["confirmed", "confirmed"]
    near = loss(np.linspace(-0.009, 0.121, 16))  # a mean of .056 with an error of .01
    assert near.p < 0.01
    assert not near.wide
    row = decide([head(near)]).iloc[0]
    assert row["stability"] < 0.9
    assert row["status"] == "candidate"
    assert "stability" in row["missing"]


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        (np.linspace(0.4, 0.6, 16), "primary"),
        (np.linspace(-0.01, 0.02, 16), "correlate"),
        (np.linspace(-0.3, -0.2, 16), "interferer"),
        (np.r_[3.0, np.full(15, -0.05)], "null"),
    ],
)
def test_outcomes_of_a_head_alone(rows, outcome) -> None:
    assert decide([head(loss(rows))]).iloc[0]["outcome"] == outcome


def test_a_head_that_is_missed_with_its_group_alone_is_secondary() -> None:
    joint = over_rows(np.linspace(0.4, 0.6, 16)).test("together", 0.05, "joint")
    alone = loss(np.linspace(-0.01, 0.01, 16))
    one = head(joint, sufficiency=(alone,), together=((0, 1), (0, 2)), group="L0H1+L0H2")
    row = decide([one]).iloc[0]
    assert (row["outcome"], row["status"]) == ("secondary", "confirmed")
