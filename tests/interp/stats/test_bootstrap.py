"""The two bootstraps against each other, and against scipy's."""

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from interp.stats.bootstrap import RowCounts, RowMeans, interval_of, row_interval

VALUES = np.random.default_rng(0).exponential(size=60)


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    low, high = row_interval(VALUES, seed=0, resamples=4000)
    theirs = bootstrap((VALUES,), np.mean, n_resamples=4000, method="percentile", rng=0)
    assert low == pytest.approx(theirs.confidence_interval.low, rel=0.03)
    assert high == pytest.approx(theirs.confidence_interval.high, rel=0.03)


def streamed_interval(
    values: np.ndarray, weights: np.ndarray, cuts: list[int]
) -> tuple[float, float]:
    counts, sums = RowCounts(seed=0, resamples=4000), RowMeans((1,), 4000)
    for rows in np.split(np.arange(len(values)), cuts):
        some, weight = (torch.from_numpy(v[rows])[:, None] for v in (values, weights))
        sums.add(some, weight, counts.draw(len(rows)))
    low, high = sums.intervals()[:, 0]
    return float(low), float(high)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_at_hand_and_rows_as_they_come_have_the_same_interval(weighted: bool) -> None:
    rng = np.random.default_rng(1)
    weights = rng.integers(1, 5, len(VALUES)).astype(float) if weighted else np.ones_like(VALUES)
    terms = np.stack([VALUES * weights, weights], axis=1)
    at_once = row_interval(terms, lambda means: means[:, 0] / means[:, 1], seed=0, resamples=4000)
    one, many = (streamed_interval(VALUES * weights, weights, cuts) for cuts in ([], [7, 20, 21]))
    assert one == pytest.approx(many)
    width = at_once[1] - at_once[0]
    assert np.subtract(one, at_once) == pytest.approx([0, 0], abs=0.06 * width)


def test_an_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(2), 0
    for _ in range(400):
        low, high = row_interval(rng.normal(size=40), seed=0, resamples=200)
        covered += low <= 0 <= high
    assert 0.89 < covered / 400 < 0.98


def test_without_resamples_there_is_no_interval() -> None:
    assert np.isnan(interval_of(np.zeros((0, 3)))).all()
    nothing = np.full((10, 2), np.nan)
    nothing[:, 0] = 1.0
    assert interval_of(nothing)[:, 0].tolist() == [1.0, 1.0]
    assert np.isnan(interval_of(nothing)[:, 1]).all()
