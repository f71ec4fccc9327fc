import mpmath
import numpy as np
import pytest

from interp.errors import ArgumentError
from interp.proofs.lagfits import fit_lag


def kernel(slopes: np.ndarray, coefficients: np.ndarray, s: int) -> mpmath.mpf:
    with mpmath.workdps(60):
        pairs = zip(coefficients, slopes, strict=True)
        return mpmath.fsum(mpmath.mpf(a) * mpmath.exp(-mpmath.mpf(p) * s) for a, p in pairs)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 6])
def test_error_equals_a_long_sum_in_extended_precision(lag: int) -> None:
    fit = fit_lag(lag)
    with mpmath.workdps(60):
        direct = mpmath.fsum(
            abs((s == lag) - kernel(fit.slopes, fit.coefficients, s)) for s in range(400)
        )
    assert fit.fit_error == pytest.approx(float(direct), rel=1e-5)


@pytest.mark.parametrize("lag", [1, 3, 5])
def test_error_equals_the_closed_form(lag: int) -> None:
    """Π (1 − z)^{−1} − 1 holds for exact coefficients; rounding adds its own bound at most."""
    fit = fit_lag(lag)
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
