"""One sum of powers for all locations of an adaptive memory with log positions (`memory` §1.4).

With a query-side scalar p_h log(1 + t_i) the kernel of a log head depends on the ratio
r = (1 + s)/(1 + t_i), so one set of coefficients must do

    Σ_h a_h r^{−p_h} ≈ 1[r = 1]   on the union of the ratios over all allowed t_i

where exponentials need only one fit, of the largest lag: e^{−p (s − t_i)} sees differences. The
ratios 1/(1 + t) … of the earliest positions make powers large, and those of different locations
fall between one another: far harder. The error of a location is its own ℓ1 sum over s ≥ 0; the
certificate is the worst location's. What the search does not find may exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize

from interp.errors import Problems
from interp.proofs.lagfits.least import BITS, least_absolute
from interp.proofs.lagfits.positions import DIGITS, tail
from interp.proofs.lagfits.sums import grid, rounded, rounding_price

__all__ = ["ShiftedFit", "fit_shifted_log"]

_NEAR = 24
_FAR = 2000


@dataclass(frozen=True)
class ShiftedFit:
    """Powers that select r = 1 for several locations, as a float64 model will hold them.

    Attributes:
        locations: The locations t_i.
        slopes: The slopes p_h, ``[head]``.
        coefficients: The coefficients a_h, ``[head]``.
        fit_errors: Σ_s |1[s = t] − Σ_h a_h ((1 + s)/(1 + t))^{−p_h}| of each location; lags beyond
            2000 count by the sum of their terms' sizes.
        rounding_errors: Bound on what evaluation adds, of each location, for |x| ≤ 1.
    """

    locations: tuple[int, ...]
    slopes: Float64[np.ndarray, " head"]
    coefficients: Float64[np.ndarray, " head"]
    fit_errors: tuple[float, ...]
    rounding_errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """The certified error, that of the worst location."""
        pairs = zip(self.fit_errors, self.rounding_errors, strict=True)
        return max(fit + rounding for fit, rounding in pairs)


def fit_shifted_log(
    locations: Sequence[int], heads: int, *, unit_roundoff: float = 2.0**-53
) -> ShiftedFit:
    """The best sum found of ``heads`` powers for all ``locations`` at once.

    Raises:
        ArgumentError: for locations below 1 or given twice, or fewer than one head.
    """
    lags = tuple(locations)
    problems = Problems("fit_shifted_log")
    good = len(lags) > 0 and min(lags, default=0) >= 1 and len(set(lags)) == len(lags)
    problems.need(good, "locations", "must be distinct and at least 1", lags, "e.g. (1, 2)")
    problems.need(heads >= 1, "heads", "must be at least 1", heads, "add heads")
    problems.raise_if_any()

    def value(at: Float64[np.ndarray, " two"]) -> float:
        return _solve(lags, heads, at, unit_roundoff, iterations=12).error

    starts = [np.array([scale, 0.37]) for scale in (-3.0, 0.0, 3.0)]
    start = min(starts, key=value)
    simplex = start + np.array([[0.0, 0.0], [0.8, 0.0], [0.0, 0.4]])
    options = {"maxfev": 25, "xatol": 0.05, "fatol": 0.0, "initial_simplex": simplex}
    best = minimize(value, start, method="Nelder-Mead", options=options).x
    return _solve(lags, heads, best, unit_roundoff, iterations=40)


def _solve(
    lags: tuple[int, ...],
    heads: int,
    at: Float64[np.ndarray, " two"],
    unit_roundoff: float,
    iterations: int,
) -> ShiftedFit:
    """The best coefficients for given slopes; every location has its own block of rows."""
    slopes = np.array(rounded(grid("log", heads, at[0], at[1]), unit_roundoff))
    price = rounding_price(heads, unit_roundoff)
    with mpmath.workdps(DIGITS):
        p = [mpmath.mpf(float(v)) for v in slopes]
        whole, beyond = tail("log", p, 0), tail("log", p, _NEAR + max(lags))
        masses = [
            max(mpmath.mpf(1 + t) ** q for t in lags) * z for q, z in zip(p, whole, strict=True)
        ]
        scale = [1 / (price * mass) for mass in masses]
        rows, wanted = [], []
        for t in lags:
            for s in range(_NEAR + max(lags)):
                ratio = mpmath.mpf(1 + s) / (1 + t)
                rows.append([_units(ratio**-q * f) for q, f in zip(p, scale, strict=True)])
                wanted.append(_units(mpmath.mpf(s == t)))
            ends = zip(p, beyond, scale, strict=True)
            rows.append([_units(mpmath.mpf(1 + t) ** q * b * f) for q, b, f in ends])
            wanted.append(0)
        as_rows, as_wanted = np.array(rows, dtype=object), np.array(wanted, dtype=object)
        found = least_absolute(as_rows, as_wanted, iterations=iterations)
        exact = [
            mpmath.ldexp(mpmath.mpf(int(b)), -BITS) * f
            for b, f in zip(found.coefficients, scale, strict=True)
        ]
    a = np.array([float(v) for v in exact])
    errors = tuple(_error(slopes, a, t) for t in lags)
    return ShiftedFit(lags, slopes, a, errors, tuple(_mass(slopes, a, t) * price for t in lags))


def _error(slopes: Float64[np.ndarray, " head"], a: Float64[np.ndarray, " head"], t: int) -> float:
    with mpmath.workdps(DIGITS):
        p = [mpmath.mpf(float(v)) for v in slopes]
        held = [mpmath.mpf(float(v)) * mpmath.mpf(1 + t) ** q for v, q in zip(a, p, strict=True)]
        total, sizes = mpmath.mpf(0), [abs(v) for v in held]
        s = 0
        while s <= t + _NEAR or (s < _FAR and mpmath.fdot(sizes, tail("log", p, s)) > total / 100):
            log = mpmath.log(1 + s)
            total += abs((s == t) - mpmath.fdot(held, [mpmath.exp(-q * log) for q in p]))
            s += 1
        return float(total + mpmath.fdot(sizes, tail("log", p, s)))


def _mass(slopes: Float64[np.ndarray, " head"], a: Float64[np.ndarray, " head"], t: int) -> float:
    with mpmath.workdps(30):
        whole = tail("log", [mpmath.mpf(float(v)) for v in slopes], 0)
    powers = np.array([float(v) for v in whole]) * np.exp(slopes * np.log1p(t))
    return float(np.abs(a) @ powers)


def _units(value: mpmath.mpf) -> int:
    return int(mpmath.nint(mpmath.ldexp(value, BITS)))
