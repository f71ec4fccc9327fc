"""Sums of exponentials and powers: optimality and rounding against direct ones."""

import mpmath
import numpy as np
import pytest
from scipy.optimize import linprog

from analyses.fits.sums import (
    BITS,
    PRECISIONS,
    as_float,
    fit_sum,
    floor,
    kernel_error,
    lag_error,
    lags_beyond,
    least_absolute,
)
from interp.errors import ArgumentError
from interp.proofs.lagfits import fit_lag
from interp.tasks.memory.kernels import MemoryKernel

RNG = np.random.default_rng(0)


def phi(positions: str, s: np.ndarray) -> np.ndarray:
    return s if positions == "lin" else np.log1p(s)


@pytest.mark.parametrize(
    ("positions", "slopes", "coefficients"),
    [
        ("lin", [0.3, 0.7, 1.9], [0.2, -1.4, 2.0]),
        ("lin", [0.05, 0.06], [1.0, -1.01]),  # changes sign where most of the sum lies
        ("log", [3.0, 3.5, 6.0], [1.0, -2.0, 1.5]),
        ("log", [4.0, 4.2], [1.0, -2.5]),  # changes sign at lag 96
    ],
)
def test_lag_error_equals_a_long_direct_sum(
    positions: str, slopes: list[float], coefficients: list[float]
) -> None:
    s = np.arange(200_000, dtype=float)
    held = np.exp(-np.outer(phi(positions, s), slopes)) @ np.array(coefficients)
    held[2] -= 1
    found = lag_error(positions, slopes, coefficients, 2)  # type: ignore[arg-type]
    assert found == pytest.approx(np.abs(held).sum(), rel=1e-8)


def as_units(values: np.ndarray) -> np.ndarray:
    whole = [int(mpmath.nint(mpmath.ldexp(mpmath.mpf(float(v)), BITS))) for v in values.ravel()]
    return np.array(whole, dtype=object).reshape(values.shape)


def test_least_absolute_is_the_linear_programmes_optimum() -> None:
    rows, target = RNG.standard_normal((14, 5)) * 3, RNG.standard_normal(14)
    n, h = rows.shape
    both = np.block([[rows, -rows, np.eye(n), -np.eye(n)]])
    exact = linprog(np.ones(2 * h + 2 * n), A_eq=both, b_eq=target).fun
    found = least_absolute(as_units(rows), as_units(target), gap=1e-3, iterations=200)
    b = as_float(found.coefficients)
    assert found.value == pytest.approx(np.abs(target - rows @ b).sum() + np.abs(b).sum(), rel=1e-9)
    assert found.bound <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= found.value <= exact * 1.01
    assert found.bound >= exact * 0.98
    assert np.abs(found.dual).max() <= 1 + 1e-12
    assert np.abs(found.dual @ rows).max() <= 1 + 1e-9


@pytest.mark.parametrize(("lag", "heads"), [(1, 2), (2, 4), (4, 6)])
def test_fit_is_no_worse_than_the_closed_form_and_its_error_is_true(lag: int, heads: int) -> None:
    fit = fit_sum(lag, heads)
    assert fit.error <= 1.5 * fit_lag(lag).error
    s = np.arange(lag + 60)
    values = (fit.coefficients[:, None] * np.exp(-fit.slopes[:, None] * s)).sum(0)
    assert np.abs(values - (s == lag)).sum() <= fit.error
    mass = (np.abs(fit.coefficients) / -np.expm1(-fit.slopes)).sum()
    assert fit.mass == pytest.approx(mass)
    assert fit.rounding_error == pytest.approx((8 + heads) * 2.0**-53 * mass)


def test_float32_numbers_are_float32_and_cost_more() -> None:
    low = fit_sum(1, 2, unit_roundoff=PRECISIONS["float32"])
    for values in (low.slopes, low.coefficients):
        assert (values.astype(np.float32) == values).all()
    s = np.arange(40, dtype=np.float32)
    terms = low.coefficients.astype(np.float32)[:, None] * np.exp(
        -low.slopes.astype(np.float32)[:, None] * s
    )
    assert np.abs(terms.sum(0) - (s == 1)).sum() <= low.error
    assert low.error > 100 * fit_sum(1, 2).error


@pytest.mark.slow
def test_more_heads_select_what_the_closed_form_cannot() -> None:
    """Nine exponentials cannot select lag 8 in float64 within 0.1; fourteen can."""
    assert fit_lag(8).error > 0.1
    assert fit_sum(8, 14).error < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["lin", "log"])
def test_floor_brackets_what_many_heads_reach(positions: str) -> None:
    value, bound = floor(1, positions=positions, unit_roundoff=2.0**-24)  # type: ignore[arg-type]
    assert 0.3 * value < bound <= value
    fit = fit_sum(1, 3, positions=positions, unit_roundoff=2.0**-24)  # type: ignore[arg-type]
    assert bound <= fit.error


def test_no_number_of_heads_selects_lag_8_in_float32() -> None:
    assert floor(8, unit_roundoff=2.0**-24)[1] > 0.25


@pytest.mark.parametrize(
    "text", ["exponential(0.01)", "polynomial(1.5)", "heavy(2)", "light(90, 1.3)", "bump(40, 30)"]
)
def test_sums_beyond_a_lag_are_the_missing_ones(text: str) -> None:
    kernel = MemoryKernel.parse(f"2 {text}")
    between = float(kernel.values(np.arange(50, 3000, dtype=float)).sum())
    assert lags_beyond(kernel, 50) - lags_beyond(kernel, 3000) == pytest.approx(between, rel=1e-3)


def test_kernels_of_the_heads_own_kind_are_exact() -> None:
    assert kernel_error("lin", [0.3], [2.0], MemoryKernel.parse("2 exponential(0.3)")) < 1e-12
    assert kernel_error("log", [1.5], [2.0], MemoryKernel.parse("2 polynomial(1.5)")) < 1e-8


@pytest.mark.slow
def test_heavy_kernels_want_powers_and_light_ones_exponentials() -> None:
    error = {(text, positions): fit_sum(text, 2, positions=positions).fit_error  # type: ignore[arg-type]
             for text in ("heavy(2)", "light(6, 1.3)") for positions in ("lin", "log")}  # fmt: skip
    assert error["heavy(2)", "log"] < error["heavy(2)", "lin"] / 2
    assert error["light(6, 1.3)", "lin"] < error["light(6, 1.3)", "log"] / 2


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ArgumentError) as caught:
        fit_sum(0, 0, unit_roundoff=1.0)  # type: ignore[arg-type]
    for part in ("lag of at least 1", "heads must be at least 1",
                 "unit_roundoff must be from"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(ArgumentError, match="shape must be one of"):
        fit_sum("gauss(1)", 2)
