import numpy as np
import pytest

from interp.heads.nulls import (
    correlation_squared,
    decodability_null,
    from_draws,
    rows_null,
    signs_null,
    swaps_null,
)

RNG = np.random.default_rng(1)


def test_correlation_is_numpys_and_ignores_scale() -> None:
    x, y = RNG.normal(size=(2, 6, 4))
    y = x + y
    expected = np.corrcoef(x.ravel(), y.ravel())[0, 1] ** 2
    assert correlation_squared(3 * x + 7, y) == pytest.approx(expected)
    assert correlation_squared(-x, y) == 0.0
    assert correlation_squared(np.ones((6, 4)), y) == 0.0


def test_p_counts_draws_as_large() -> None:
    null = from_draws(2.0, np.array([0.0, 1.0, 2.0, 3.0]))
    assert null.p == pytest.approx(3 / 5)
    assert null.mean == 1.5


def test_what_is_not_a_number_has_no_p() -> None:
    assert np.isnan(from_draws(float("nan"), np.zeros(5)).p)
    assert np.isnan(from_draws(1.0, np.array([0.0, np.nan])).p)


def test_normal_tail_goes_below_the_number_of_draws() -> None:
    draws = RNG.normal(size=1000)
    assert from_draws(6.0, draws).p == pytest.approx(1 / 1001)
    assert 1e-12 < from_draws(6.0, draws, normal_tail=True).p < 1e-7
    near = from_draws(1.0, draws, normal_tail=True).p
    assert near == from_draws(1.0, draws).p == pytest.approx(0.16, abs=0.04)


def test_rows_null_equals_permuting_and_correlating_again() -> None:
    x, y = RNG.normal(size=(2, 7, 3))
    found = rows_null(x, y, seed=4, draws=20)
    rng = np.random.default_rng(4)
    for value in found:
        order = rng.permutation(7)
        assert value == pytest.approx(np.corrcoef(x.ravel(), y[order].ravel())[0, 1])


def test_rows_null_keeps_dependence_within_rows() -> None:
    """Constant rows: as if there were only as many samples as rows."""
    x, y = (np.repeat(RNG.normal(size=(30, 1)), 50, axis=1) for _ in range(2))
    assert rows_null(x, y, seed=0).std() == pytest.approx(1 / np.sqrt(29), rel=0.1)


def test_decodability_null_finds_signal_and_not_noise() -> None:
    x, noise = RNG.normal(size=(2, 60, 4))
    assert decodability_null(x, x + noise, seed=0).p < 1e-6
    null = decodability_null(x, noise, seed=0)
    assert null.p > 0.01
    assert null.mean == pytest.approx(0.5 / 240, rel=0.4)
    assert decodability_null(np.zeros((60, 4)), noise, seed=0).p == 1.0


@pytest.mark.parametrize("same", [True, False])
def test_swaps_null_is_exceeded_only_by_a_difference(same: bool) -> None:
    y = RNG.normal(size=(40, 6))
    good = y + 0.1 * RNG.normal(size=y.shape)
    other = y + 0.1 * RNG.normal(size=y.shape) if same else RNG.normal(size=y.shape)
    drop = correlation_squared(good, y) - correlation_squared(other, y)
    null = from_draws(drop, swaps_null(good, other, y, seed=0))
    assert (null.p > 0.02) == same
    assert abs(null.mean) < 0.05


def test_signs_null_is_centred_with_the_right_spread() -> None:
    differences = RNG.normal(size=200)
    draws = signs_null(differences, seed=0, draws=4000)
    assert abs(draws.mean()) < 0.01
    assert draws.std() == pytest.approx(np.sqrt((differences**2).sum()) / 200, rel=0.05)
