from itertools import permutations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from interp.stats.nulls import (
    accuracy_null,
    balanced_accuracy,
    correlation_interval,
    correlation_squared,
    decodability_null,
    paired_null,
    swaps_null,
)
from interp.stats.p_values import LEAST_P

RNG = np.random.default_rng(1)


def test_correlation_is_numpys_and_ignores_scale() -> None:
    x, y = RNG.normal(size=(2, 6, 4))
    y = x + y
    expected = np.corrcoef(x.ravel(), y.ravel())[0, 1] ** 2
    assert correlation_squared(3 * x + 7, y) == pytest.approx(expected)
    assert correlation_squared(-x, y) == 0.0
    assert correlation_squared(np.ones((6, 4)), y) == 0.0


def test_decodability_null_is_that_of_permuted_rows() -> None:
    """Drawn one by one; a permutation that leaves no row in its place stands for other rows'."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 40, 3)) + rng.normal(size=(2, 40, 1))
    drawn = []
    for _ in range(8000):
        order = rng.permutation(40)
        drawn.append(correlation_squared(x, y[order]))
    null = decodability_null(x, y)
    assert (null.name, null.draws) == ("rows", 0)
    assert null.mean == pytest.approx(np.mean(drawn), rel=0.15)
    assert null.std == pytest.approx(np.std(drawn), rel=0.15)


def test_decodability_p_is_uniform_where_there_is_nothing() -> None:
    rng = np.random.default_rng(5)
    p = []
    for _ in range(1500):
        x, y = rng.normal(size=(2, 24, 4)) + rng.normal(size=(2, 24, 1))
        p.append(decodability_null(x, y).p)
    for level in (0.5, 0.1, 0.01):
        assert np.mean(np.array(p) <= level) == pytest.approx(level, rel=0.35, abs=0.005)


def test_decodability_null_finds_signal_and_not_noise() -> None:
    x, noise = RNG.normal(size=(2, 60, 4))
    assert decodability_null(x, x + noise).p < 1e-6
    null = decodability_null(x, noise)
    assert null.p > 0.01
    assert null.mean == pytest.approx(0.5 / 240, rel=0.4)
    assert decodability_null(np.zeros((60, 4)), noise).p == 1.0
    assert decodability_null(x[:3], x[:3]).p >= 1 / 6


def test_accuracy_null_is_that_of_permuted_rows() -> None:
    rng = np.random.default_rng(3)
    actual, predicted = (rng.integers(3, size=(5, 8)).astype(float) for _ in range(2))
    drawn = [balanced_accuracy(predicted, actual[list(order)]) for order in permutations(range(5))]
    null = accuracy_null(predicted, actual)
    own = balanced_accuracy(predicted, actual)
    assert own - null.mean == pytest.approx((own - np.mean(drawn)) * 5 / 4)
    assert null.std == pytest.approx(np.std(drawn) * 5 / 4)
    assert null.p >= 1 / 120


def test_a_class_that_no_sample_has_does_not_count() -> None:
    rng = np.random.default_rng(4)
    actual, predicted = (rng.integers(3, size=(5, 8)).astype(float) for _ in range(2))
    for score in (balanced_accuracy, accuracy_null):
        found = score(predicted, actual, classes=np.arange(4.0))
        assert found == score(predicted, actual, classes=np.arange(3.0))
    assert balanced_accuracy(actual, actual, classes=np.arange(4.0)) == 1
    assert balanced_accuracy(actual, actual, classes=np.array([0.0, 7.0])) == 0  # one class alone


def test_swaps_null_is_exceeded_only_by_a_difference() -> None:
    y, noise, more = RNG.normal(size=(3, 40, 6))
    good = y + 0.1 * noise
    others = {"another": more, "as good": y + 0.1 * more, "but for rounding": good + 1e-9 * y}
    for name, other in others.items():
        null = swaps_null(good, other, y, seed=0)
        assert (null.p > 0.02) == (name != "another"), name
        assert abs(null.mean) < 0.05
        assert null.draws == 1000


def test_paired_null_is_students_t() -> None:
    differences = RNG.normal(0.2, 1.0, size=50)
    null = paired_null(differences)
    assert null.p == pytest.approx(ttest_1samp(differences, 0.0, alternative="greater").pvalue)
    assert (null.mean, null.name) == (0.0, "paired")
    assert null.std == pytest.approx(differences.std(ddof=1) / np.sqrt(50))


def test_paired_null_without_spread() -> None:
    assert paired_null(np.zeros(5)).p == 1.0
    assert paired_null(np.ones(5)).p == LEAST_P
    assert paired_null(-np.ones(5)).p == 1.0
    assert paired_null(np.ones(1)).p == 1.0
    assert np.isnan(paired_null(np.array([1.0, np.nan])).p)


def test_the_interval_of_a_difference_of_correlations_holds_it() -> None:
    y = RNG.normal(size=(60, 5))
    good, poor = y + 0.3 * RNG.normal(size=y.shape), y + 2.0 * RNG.normal(size=y.shape)
    low, high = correlation_interval(good, y, seed=0)
    assert low < correlation_squared(good, y) < high
    low, high = correlation_interval(good, y, than=poor, seed=0)
    assert 0 < low < correlation_squared(good, y) - correlation_squared(poor, y) < high
