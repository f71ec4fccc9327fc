"""The one rule for p: counted, fitted, floored, and right under the null."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import expon, gamma, norm

from interp.stats.p_values import LEAST_P, from_draws, from_moments, gamma_tail

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=1000)


def test_p_counts_draws_as_large() -> None:
    null = from_draws(2.0, np.array([0.0, 1.0, 2.0, 3.0]), name="mine")
    assert null.p == pytest.approx(3 / 5)
    assert (null.mean, null.name, null.draws) == (1.5, "mine", 4)
    for score in (0.0, 1.0, 2.0):
        assert from_draws(score, NORMAL).p == (1 + (score <= NORMAL).sum()) / 1001


def test_few_draws_are_counted_and_no_tail_is_fitted() -> None:
    assert from_draws(50.0, NORMAL[:99]).p == 1 / 100
    assert from_draws(50.0, NORMAL[:100]).p == 1 / 1000


def test_beyond_the_draws_p_follows_an_exponential_tail_to_its_floor() -> None:
    draws = expon.isf((np.arange(1000) + 0.5) / 1000)
    for score in (5.0, 6.0, 7.5):
        assert from_draws(score, draws).p == pytest.approx(expon.sf(score), rel=0.25)
    assert from_draws(30.0, draws).p == 1e-4
    normal = norm.isf((np.arange(1000) + 0.5) / 1000)
    for score in (2.5, 3.0, 4.0):
        assert norm.sf(score) < from_draws(score, normal).p
    assert from_draws(8.0, normal).p == 1e-4


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=2))
def test_a_larger_score_has_no_larger_p(scores: list[float]) -> None:
    small, large = sorted(scores)
    assert from_draws(large, NORMAL).p <= from_draws(small, NORMAL).p
    assert from_draws(small, NORMAL, two_sided=True).p == pytest.approx(
        from_draws(-small, -NORMAL, two_sided=True).p
    )


def test_draws_that_are_all_alike_have_no_tail() -> None:
    assert from_draws(1.0, np.zeros(1000)).p == 1 / 1001
    assert from_draws(0.0, np.zeros(1000)).p == 1.0


@pytest.mark.parametrize("family", [norm, expon, gamma(2.0)])
def test_p_of_draws_is_uniform_under_the_null_and_seldom_too_small(family) -> None:
    rng = np.random.default_rng(3)
    p = np.array([
        from_draws(float(family.rvs(random_state=rng)), family.rvs(size=200, random_state=rng)).p
        for _ in range(4000)
    ])  # fmt: skip
    assert np.abs(np.histogram(p, 10, (0, 1))[0] / 4000 - 0.1).max() < 0.03
    for level in (0.05, 0.01, 0.003):
        assert (p <= level).mean() < 1.35 * level + 0.001


def test_moments_give_the_tails_of_their_distributions() -> None:
    assert from_moments(3.0, 1.0, 2.0).p == pytest.approx(norm.sf(1.0))
    assert from_moments(-1.0, 1.0, 2.0, tail="two-sided").p == pytest.approx(2 * norm.sf(1.0))
    mean, std = 2.0, 1.0
    wanted = gamma.sf(4.0, (mean / std) ** 2, scale=std**2 / mean)
    assert from_moments(4.0, mean, std, tail="gamma").p == pytest.approx(wanted)
    tails = gamma_tail(np.array([4.0, -1.0]), mean, np.array([std, 0.0]))
    assert tails[0] == pytest.approx(wanted)
    assert np.isnan(tails[1])


def test_no_p_is_below_what_its_null_can_tell() -> None:
    assert from_moments(100.0, 0.0, 1.0).p == LEAST_P
    assert from_moments(100.0, 0.0, 1.0, least=1 / 24).p == 1 / 24
    assert from_moments(-100.0, 0.0, 1.0).p == 1.0
    assert from_moments(1.0, 0.0, 0.0).p == 1.0


def test_what_is_not_a_number_has_no_p() -> None:
    assert np.isnan(from_draws(float("nan"), np.zeros(5)).p)
    assert np.isnan(from_draws(1.0, np.array([0.0, np.nan])).p)
    assert np.isnan(from_moments(float("inf"), 0.0, 1.0).p)
    assert np.isnan(from_moments(1.0, float("nan"), float("nan")).p)


def test_a_spread_of_rounding_is_none() -> None:
    """A score that is the same in every arrangement, but for the order in which it was summed."""
    for score in (0.919300535, 0.9193005351969605, np.nextafter(0.919300535, 1.0)):
        assert from_moments(float(score), 0.919300535, 1e-17).p == 1.0
    assert from_moments(1.0 + 3e-6, 1.0, 1e-6).p == pytest.approx(0.00135, abs=1e-4)
    assert from_moments(3e-20, 0.0, 1e-20).p == pytest.approx(0.00135, abs=1e-4)
