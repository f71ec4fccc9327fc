"""Select one lag with a sum of exponentials (`memory` §1.4, *locating a lag*).

    Σ_h a_h e^{−p_h s} ≈ 1[s = T] for all s ≥ 0

With H = T + 1 distinct nodes z_h = e^{−p_h} and a_h = Π_{k≠h} (z_h − z_k)^{−1}, the sum is the
complete homogeneous symmetric polynomial h_{s−T}(z): 0 for s < T, 1 at s = T, and positive after.
The ℓ1 error is therefore Π_h (1 − z_h)^{−1} − 1 in closed form. Small nodes make it small and the
coefficients large, of the order ε^{−T}, and what is gained in the fit is lost in rounding: the fit
here minimises the sum of both at the working precision. Beyond T ≈ 6 these nodes leave float64
nothing to trade (`sums` gets a little further with more heads); a fit that exists in exact
arithmetic says nothing about one that can be trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, prod

import mpmath
import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize_scalar

from interp.errors import Problems

_DIGITS = 60
_ROUNDINGS = 8
"""Roundings per term: in the exponent, its exponential, the value, product and running sum."""


@dataclass(frozen=True)
class LagFit:
    """A sum of exponentials that selects a lag, with the numbers that the model will hold.

    Attributes:
        lag: The lag T.
        slopes: The slopes p_h, positive, ``[head]``.
        coefficients: The coefficients a_h, ``[head]``.
        fit_error: Σ_s |1[s = T] − Σ_h a_h e^{−p_h s}| over all s ≥ 0, of these rounded numbers.
        rounding_error: Bound on what evaluation at the unit roundoff adds, for |x| ≤ 1.
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
    """The best fit with T + 1 nodes at r·k/(T + 1), where r is chosen for the least error.

    Args:
        lag: The lag T ≥ 1.
        unit_roundoff: Of the arithmetic the model runs in: 2^−53 for float64, 2^−24 for float32.

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
    """A bound on the rounding error: Σ_h |a_h| Σ_s z_h^s times the roundings of a term."""
    heads = len(nodes)
    mass = float((np.abs(coefficients) / (1 - nodes)).sum())
    return (_ROUNDINGS + heads) * unit_roundoff * mass


def _as_held(
    slopes: Float64[np.ndarray, " head"],
) -> tuple[list[mpmath.mpf], Float64[np.ndarray, " head"]]:
    """The exact nodes of the rounded slopes, and the rounded coefficients that belong to them."""
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
    """The ℓ1 error of the rounded coefficients, in extended precision.

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
