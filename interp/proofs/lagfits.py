"""A lag as a sum of exponentials, and the error of sums of exponentials or powers (`memory` §1.4).

    Σ_h a_h e^{−p_h s} ≈ 1[s = T] for all s ≥ 0

With H = T + 1 distinct nodes z_h = e^{−p_h} and a_h = Π_{k≠h} (z_h − z_k)^{−1}, the sum is the
complete homogeneous symmetric polynomial h_{s−T}(z): 0 for s < T, 1 at s = T, and positive after.
The ℓ1 error is therefore Π_h (1 − z_h)^{−1} − 1 in closed form. Small nodes make it small and the
coefficients large, of the order ε^{−T}, so that a better fit has larger rounding errors. The fit
here minimises the sum of both at the working precision. Beyond T ≈ 6 no choice of these nodes is
good in float64. A fit that exists in exact arithmetic does not show that one can be trained.

*The basis* is e^{−p φ(s)} of relative positions, whose sums have a closed form:

    lin   φ(s) = s            Σ_{s ≥ a} e^{−ps} = e^{−pa} / (1 − e^{−p})     geometric, p > 0
    log   φ(s) = log(1 + s)   Σ_{s ≥ a} (1 + s)^{−p} = ζ(p, 1 + a)           Hurwitz, p > 1

The Hurwitz zeta function is summed by Euler and Maclaurin's formula from 1 + a ≥ 48 on with 24
terms: relative error below 1e−24 for p ≤ 40, in a hundredth of a general routine's time.

Log positions with p ≤ 1 have no finite sum over all lags: no bound over unbounded rows exists.

On a row the sum ends at the position t, and a softmax divides each term by the sum up to t:

    Σ_{s ≤ t} |ρ(s) − Σ_h a_h (Z_∞/Z_t) e^{−p_h φ(s)}|    Z_t = Σ_{s ≤ t} e^{−p_h φ(s)}

This is summed exactly, in integer multiples of 2^{−266}, because large coefficients cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log, prod
from typing import Any, Literal

import mpmath
import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from interp.errors import Problems

_DIGITS = 60
_ROUNDINGS = 8
"""Number of roundings that affect one term: in the exponent, its exponential, the value, the
product and the running sum."""


@dataclass(frozen=True)
class LagFit:
    """A sum of exponentials that selects a lag, with the numbers as the model stores them.

    Attributes:
        lag: The lag T.
        slopes: The slopes p_h, positive, ``[head]``.
        coefficients: The coefficients a_h, ``[head]``.
        fit_error: Σ_s |1[s = T] − Σ_h a_h e^{−p_h s}| over all s ≥ 0, of these rounded numbers.
        rounding_error: A bound on the error that evaluation in floating point adds, for |x| ≤ 1.
    """

    lag: int
    slopes: Float64[np.ndarray, " head"]
    coefficients: Float64[np.ndarray, " head"]
    fit_error: float
    rounding_error: float

    @property
    def error(self) -> float:
        """A bound on |Σ_s kernel(s) x_{t−s} − x_{t−T}| for |x| ≤ 1."""
        return self.fit_error + self.rounding_error


def fit_lag(lag: int, *, unit_roundoff: float = 2.0**-53) -> LagFit:
    """Return the best fit with T + 1 nodes at r·k/(T + 1), where r is chosen for the least error.

    Args:
        lag: The lag T ≥ 1.
        unit_roundoff: Unit roundoff of the model's arithmetic: 2^−53 for float64, 2^−24 for
            float32.

    Raises:
        ArgumentError: if the lag is below 1.
    """
    problems = Problems("fit_lag")
    problems.need(lag >= 1, "lag", "must be at least 1", lag, "lag 0 is the residual stream itself")
    problems.raise_if_any()
    shape = np.arange(1, lag + 2) / (lag + 1)

    def total(log_scale: float) -> float:
        nodes = np.exp(log_scale) * shape
        return _closed_form_error(nodes) + _rounding(nodes, _coefficients(nodes), unit_roundoff)

    best = minimize_scalar(total, bounds=(log(1e-9), log(0.5)), method="bounded")
    slopes = -np.log(np.exp(best.x) * shape)
    nodes, coefficients = _as_held(slopes)
    return LagFit(
        lag=lag,
        slopes=slopes,
        coefficients=coefficients,
        fit_error=_exact_error(nodes, coefficients, lag),
        rounding_error=_rounding(np.exp(-slopes), coefficients, unit_roundoff),
    )


def _coefficients(nodes: Float64[np.ndarray, " head"]) -> Float64[np.ndarray, " head"]:
    differences = nodes[:, None] - nodes + np.eye(len(nodes))
    return 1 / differences.prod(axis=1)


def _closed_form_error(nodes: Float64[np.ndarray, " head"]) -> float:
    return float(np.expm1(-np.log1p(-nodes).sum()))


def _rounding(
    nodes: Float64[np.ndarray, " head"],
    coefficients: Float64[np.ndarray, " head"],
    unit_roundoff: float,
) -> float:
    """Return a bound on the rounding error: Σ_h |a_h| Σ_s z_h^s times the number of roundings of a
    term."""
    heads = len(nodes)
    mass = float((np.abs(coefficients) / (1 - nodes)).sum())
    return (_ROUNDINGS + heads) * unit_roundoff * mass


def _as_held(
    slopes: Float64[np.ndarray, " head"],
) -> tuple[list[mpmath.mpf], Float64[np.ndarray, " head"]]:
    """Return the exact nodes of the rounded slopes, and the rounded coefficients that belong to
    them."""
    with mpmath.workdps(_DIGITS):
        nodes = [mpmath.exp(-mpmath.mpf(p)) for p in slopes]
        held = [
            float(1 / prod((z - y for y in nodes if y is not z), start=mpmath.mpf(1)))
            for z in nodes
        ]
    return nodes, np.array(held)


def _exact_error(
    nodes: list[mpmath.mpf], coefficients: Float64[np.ndarray, " head"], lag: int
) -> float:
    """Return the ℓ1 error of the rounded coefficients, in extended precision.

    Lags 0 … S are summed one by one; the rest is bounded by Σ_h |a_h| z_h^{S+1} / (1 − z_h).
    """
    with mpmath.workdps(_DIGITS):
        a = [mpmath.mpf(c) for c in coefficients]
        powers = [mpmath.mpf(1)] * len(nodes)
        error, s = mpmath.mpf(0), 0
        while True:
            error += abs((s == lag) - mpmath.fdot(a, powers))
            powers = [power * z for power, z in zip(powers, nodes, strict=True)]
            terms = zip(a, powers, nodes, strict=True)
            tail = mpmath.fsum(abs(c) * power / (1 - z) for c, power, z in terms)
            if s > lag and tail < error * mpmath.mpf("1e-6"):
                return float(error + tail)
            s += 1


Positions = Literal["lin", "log"]
DIGITS = 80
"""Number of decimal digits of the extended-precision arithmetic."""
_FROM, _TERMS = 48, 24
LEAST_SLOPE = {"lin": 0.0, "log": 1.0}


def phi(positions: Positions, s: int) -> Any:
    """Return the position function φ(s) in extended precision.

    Args:
        positions: ``lin`` for φ(s) = s, ``log`` for φ(s) = log(1 + s).
        s: The lag.
    """
    return mpmath.mpf(s) if positions == "lin" else mpmath.log(1 + s)


def phi_values(positions: Positions, s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return φ(s) = s (``lin``) or log(1 + s) (``log``) at float64 lags, in the shape of ``s``."""
    return s if positions == "lin" else np.log1p(s)


def basis(positions: Positions, slopes: Sequence[Any], s: int) -> list[Any]:
    """Return the basis functions e^{−p φ(s)} for every slope p, in extended precision."""
    at = phi(positions, s)
    return [mpmath.exp(-p * at) for p in slopes]


def tail(positions: Positions, slopes: Sequence[Any], start: int) -> list[Any]:
    """Return the tail sums Σ_{s ≥ start} e^{−p φ(s)} for every slope p, in extended precision."""
    if positions == "lin":
        return [mpmath.exp(-p * start) / -mpmath.expm1(-p) for p in slopes]
    return [_hurwitz(p, 1 + start) for p in slopes]


def _hurwitz(p: Any, a: int) -> Any:
    n = max(a, _FROM)
    total = mpmath.fsum(mpmath.exp(-p * mpmath.log(k)) for k in range(a, n))
    power = mpmath.exp(-p * mpmath.log(n))
    total += power * (mpmath.mpf(n) / (p - 1) + mpmath.mpf(1) / 2)
    rising, scale = p, power / n
    for k, factor in enumerate(_bernoulli(), start=1):
        total += factor * rising * scale
        rising *= (p + 2 * k - 1) * (p + 2 * k)
        scale /= n * n
    return total


@cache
def _bernoulli() -> tuple[Any, ...]:
    """Return the coefficients B_{2k} / (2k)! of Euler and Maclaurin's formula, for k from 1."""
    with mpmath.workdps(DIGITS):
        return tuple(
            mpmath.bernoulli(2 * k) / mpmath.factorial(2 * k) for k in range(1, _TERMS + 1)
        )


_BITS = 266
"""Number of binary digits after the point in the fixed-point form of a term. 266 bits are the 80
decimal digits of :data:`DIGITS`."""


def errors_so_far(
    positions: Positions,
    slopes: Sequence[float],
    coefficients: Sequence[float],
    wanted: Float64[np.ndarray, " lag"],
    *,
    softmax: bool = False,
) -> Float64[np.ndarray, " pos"]:
    """Return the error Σ_{s ≤ t} |wanted(s) − held_t(s)| at every position t of a row.

    Args:
        positions: ``lin`` or ``log``.
        slopes: The slopes p_h.
        coefficients: The coefficients a_h; with a softmax, those for normalisers at their limit
            Z_∞.
        wanted: The wanted weight of every lag, ``[lag]``, as many as the row is long.
        softmax: Whether each head is divided by its normaliser so far, Z_t, relative to its limit
            Z_∞.
    """
    with mpmath.workdps(DIGITS):
        p, a = [mpmath.mpf(float(v)) for v in slopes], [mpmath.mpf(float(v)) for v in coefficients]
        powers = [basis(positions, p, s) for s in range(len(wanted))]
        limits = tail(positions, p, 0) if softmax else [mpmath.mpf(1)] * len(p)
        so_far, held = [mpmath.mpf(0)] * len(p), []
        for row in powers:
            so_far = [z + value for z, value in zip(so_far, row, strict=True)]
            shares = zip(a, limits, so_far, strict=True)
            held.append([c * z / now if softmax else c for c, z, now in shares])
        terms, factors = _multiples(powers, _BITS), _multiples(held, _BITS)
        target = _multiples([[mpmath.mpf(float(v))] for v in wanted], 2 * _BITS)[:, 0]
    rows = range(1, len(wanted) + 1)
    found = (abs(target[:t] - terms[:t] @ factors[t - 1]).sum() for t in rows)
    return np.array([error / (1 << 2 * _BITS) for error in found])


def _multiples(values: Sequence[Sequence[Any]], bits: int) -> NDArray[np.object_]:
    """Convert numbers in extended precision to integer multiples of 2^−bits."""
    return np.array([[int(mpmath.ldexp(v, bits)) for v in row] for row in values], dtype=object)


def grid(positions: Positions, heads: int, scale: float, spread: float) -> NDArray[np.float64]:
    """Return ``heads`` ALiBi slopes p, above the least one, such that e^{−p/γ} lies at Chebyshev
    points of (0, r), with p counted from the least slope; γ = e^spread and r = 0.98 / (1 +
    e^{−scale})."""
    points = (1 - np.cos(np.pi * (2 * np.arange(heads) + 1) / (2 * heads))) / 2
    z = 0.98 / (1 + np.exp(-scale)) * points
    # p = −γ log z above the least slope, γ = e^spread (1/log 2 makes z = 2^{−p} for log)
    return LEAST_SLOPE[positions] * 1.001 - np.exp(spread) * np.log(z)
