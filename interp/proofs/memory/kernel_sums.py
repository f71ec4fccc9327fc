"""Fit a kernel on the lags of a row by a sum of H exponentials or powers, fast and in float64.

    minimise   Σ_s |ρ(s) − Σ_h a_h e^{−p_h φ(s)}| + price · Σ_h |a_h| Σ_s e^{−p_h φ(s)}

by iteratively reweighted least squares on a searched grid of slopes. Kernels are smooth, so unlike
lags (:mod:`interp.proofs.lagfits.sums`, extended precision and minutes) they need no cancellation
beyond float64; what the construction certifies is the error of the numbers it holds, evaluated lag
by lag, not this search's opinion of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize

from interp.proofs.lagfits.positions import Positions, phi_values
from interp.proofs.lagfits.sums import grid

__all__ = ["HeadSum", "fit_kernel"]

_ROUNDS = 12
_STARTS = ((-4.0, 0.0), (-2.0, 0.0), (0.0, 0.0), (2.0, 0.0), (2.0, 1.0), (4.0, 1.0))


@dataclass(frozen=True)
class HeadSum:
    """The heads of one memory: the slopes and coefficients of a sum.

    Attributes:
        slopes: The slopes p_h, ``[head]``.
        coefficients: The coefficients a_h, ``[head]``.
    """

    slopes: Float64[np.ndarray, " head"]
    coefficients: Float64[np.ndarray, " head"]


def fit_kernel(
    values: Float64[np.ndarray, " lag"], heads: int, positions: Positions, *, price: float = 1e-13
) -> HeadSum:
    """The best sum found for ``values`` at lags 0, 1, ….

    Args:
        values: The kernel ρ on the lags of a row, ``[lag]``.
        heads: The number of terms H.
        positions: ``lin`` or ``log``.
        price: What a unit of Σ_h |a_h| Σ_s e^{−p_h φ(s)} costs.
    """
    phi = phi_values(positions, np.arange(len(values), dtype=np.float64))

    def solved(at: Float64[np.ndarray, " two"]) -> tuple[float, HeadSum]:
        slopes = grid(positions, heads, float(at[0]), float(at[1]))
        return _solve(values, np.exp(-np.outer(phi, slopes)), slopes, price)

    def value(at: Float64[np.ndarray, " two"]) -> float:
        return solved(at)[0]

    start = min((np.array(place) for place in _STARTS), key=value)
    simplex = start + np.array([[0.0, 0.0], [0.8, 0.0], [0.0, 0.4]])
    options = {"maxfev": 80, "xatol": 1e-3, "fatol": 0.0, "initial_simplex": simplex}
    return solved(minimize(value, start, method="Nelder-Mead", options=options).x)[1]


def _solve(
    values: Float64[np.ndarray, " lag"],
    powers: Float64[np.ndarray, "lag head"],
    slopes: Float64[np.ndarray, " head"],
    price: float,
) -> tuple[float, HeadSum]:
    """The value of the objective and the best sum, for given slopes."""
    masses = powers.sum(0)
    columns, weights = powers / masses, np.ones(len(values))
    best = (np.inf, np.zeros_like(slopes))
    for step in range(_ROUNDS):
        scaled, wanted = columns * weights[:, None], values * weights
        b = np.linalg.lstsq(scaled, wanted, rcond=1e-13)[0]
        errors = np.abs(values - columns @ b)
        total = float(errors.sum() + price * np.abs(b).sum())
        if total < best[0]:
            best = (total, b / masses)
        weights = 1 / np.sqrt(np.hypot(errors, errors.mean() * 0.5**step + 1e-300))
    return best[0], HeadSum(slopes, best[1])
