"""Sums of exponentials and powers: closed forms, and errors, against direct ones."""

import mpmath
import numpy as np
import pytest

from interp.errors import ArgumentError
from interp.proofs.lagfits import errors_so_far, fit_lag, tail


def kernel(slopes: np.ndarray, coefficients: np.ndarray, s: int) -> mpmath.mpf:
    with mpmath.workdps(60):
        pairs = zip(coefficients, slopes, strict=True)
        return mpmath.fsum(mpmath.mpf(a) * mpmath.exp(-mpmath.mpf(p) * s) for a, p in pairs)


@pytest.mark.parametrize("lag", [1, 3, 6])
def test_error_equals_a_long_sum_in_extended_precision_and_the_closed_form(lag: int) -> None:
    """Π (1 − z)^{−1} − 1 holds for exact coefficients; rounding adds its own bound at most."""
    fit = fit_lag(lag)
    with mpmath.workdps(60):
        direct = mpmath.fsum(
            abs((s == lag) - kernel(fit.slopes, fit.coefficients, s)) for s in range(400)
        )
    assert fit.fit_error == pytest.approx(float(direct), rel=1e-5)
    closed = float(np.expm1(-np.log1p(-np.exp(-fit.slopes)).sum()))
    assert fit.fit_error == pytest.approx(closed, abs=fit.rounding_error)


def test_evaluation_in_float64_stays_within_the_bound() -> None:
    for lag in range(1, 6):
        fit = fit_lag(lag)
        s = np.arange(40)
        values = (fit.coefficients[:, None] * np.exp(-fit.slopes[:, None] * s)).sum(0)
        assert np.abs(values - (s == lag)).sum() <= fit.error


def test_lower_precision_and_larger_lags_cost() -> None:
    errors = [fit_lag(lag).error for lag in range(1, 7)]
    assert errors == sorted(errors)
    assert fit_lag(2, unit_roundoff=2.0**-24).error > 100 * fit_lag(2).error


def test_lag_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="lag must be at least 1, got 0"):
        fit_lag(0)


@pytest.mark.parametrize("start", [0, 3, 200])
def test_tails_equal_the_zeta_function_and_the_geometric_series(start: int) -> None:
    with mpmath.workdps(100):
        slopes = [mpmath.mpf(p) for p in (1.003, 1.5, 7.25, 20)]
        for p, found in zip(slopes, tail("log", slopes, start), strict=True):
            assert abs(found / mpmath.zeta(p, 1 + start) - 1) < 1e-24
        direct = mpmath.fsum(mpmath.exp(-mpmath.mpf(1.5) * s) for s in range(start, start + 60))
        assert abs(tail("lin", slopes, start)[1] / direct - 1) < 1e-20


@pytest.mark.parametrize("softmax", [False, True])
def test_the_error_on_a_row_is_that_of_a_slow_loop_although_its_terms_cancel(softmax: bool) -> None:
    """Two coefficients of 1e15 leave 0.3 of each other at lag 1; float64 keeps no digit of it."""
    slopes, a, wanted = [1.0, 1.0 + 2.0**-50], [1e15, -1e15], np.array([0.0, 1.0, 0.5, 0.0])
    with mpmath.workdps(60):
        p = [mpmath.mpf(v) for v in slopes]
        slow = []
        for t in range(4):
            error = mpmath.mpf(0)
            for s in range(t + 1):
                held = mpmath.mpf(0)
                for slope, factor in zip(p, a, strict=True):
                    so_far = sum(mpmath.exp(-slope * k) for k in range(t + 1))
                    settled = 1 / (1 - mpmath.exp(-slope)) / so_far if softmax else 1
                    held += factor * settled * mpmath.exp(-slope * s)
                error += abs(float(wanted[s]) - held)
            slow.append(float(error))
    found = errors_so_far("lin", slopes, a, wanted, softmax=softmax)
    assert found == pytest.approx(slow, rel=1e-14)
    assert (found > 0.1).any()
