"""Sums of heads by variable projection: slopes are searched, coefficients solved for.

    E(p) = min_a Σ_{s < S} (target(s) − Σ_h a_h e^{−p_h φ(s)})² / Σ_{s < S} target(s)²

For white inputs (Gaussian, mean 0, variance 1) this is the mean square error of a layer without
dot products and without normaliser, as a share of the target's variance: what trained models are
compared with. The linear part is exact least squares in float64, so the gap to a model trained by
gradient descent is one of optimisation and of float32, not of expressivity. The constructions
minimise the ℓ1 error over all lags instead (:mod:`analyses.fits.sums`), which bounds the error
for *every* bounded input: a smaller norm here does not contradict a larger one there.

The search is a search: a smaller error may exist. :func:`descend` is what gradient descent makes of
the slopes alone, from where training starts, if the linear part is solved at every step: it may get
stuck, as training does, but not because coefficients that cancel each other are slow to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.optimize import least_squares

from prooflens.proofs import Positions, grid, phi_values

__all__ = ["Projected", "descend", "grid_start", "project", "search"]

_SCALES, _SPREADS = (-4.0, -2.0, 0.0, 2.0, 4.0), {"lin": (0.0, 1.0), "log": (0.37, 1.2)}
_EVALUATIONS = 60
_MEANS, _TINY = (0.9, 0.999), 1e-12  # Adam's
_PRICE = 1e-4

Lags = Float64[np.ndarray, "lag"]


@dataclass(frozen=True)
class Projected:
    """A sum of heads, with the error of its fit.

    Attributes:
        slopes: The slopes p_h, ``[head]``.
        coefficients: The coefficients a_h, ``[head]``.
        error: The relative squared error Σ (target − sum)² / Σ target².
    """

    slopes: Float64[np.ndarray, " head"]
    coefficients: Float64[np.ndarray, " head"]
    error: float

    def values(self, lags: int, positions: Positions) -> Lags:
        """Return the sum's values at lags 0 to ``lags`` − 1."""
        held: Lags = _basis(lags, self.slopes, positions) @ self.coefficients
        return held


def project(target: Lags, slopes: Float64[np.ndarray, " head"], positions: Positions) -> Projected:
    """Return the sum with the given slopes and the best coefficients for them."""
    basis = _basis(len(target), slopes, positions)
    coefficients, *_ = np.linalg.lstsq(basis, target, rcond=None)
    left = target - basis @ coefficients
    return Projected(slopes, coefficients, float((left**2).sum() / (target**2).sum()))


def search(target: Lags, heads: int, positions: Positions) -> Projected:
    """Search for the slopes with the smallest error: start from the constructions' grids and
    improve them by least squares."""
    ranked = _rank_grids(target, heads, positions)
    found = [_improve_slopes(target, one.slopes, positions) for one in ranked[:3]]
    return min((*ranked, *found), key=lambda one: one.error)


def descend(
    target: Lags,
    slopes: Float64[np.ndarray, " head"],
    positions: Positions,
    *,
    steps: int,
    learning_rate: float,
) -> Projected:
    """Adam on the logarithms of the slopes, from ``slopes``, with coefficients solved at each step.

    At the best coefficients the gradient of E is that at fixed coefficients. The rate falls to 0
    like a cosine.
    """
    phi = phi_values(positions, np.arange(len(target), dtype=np.float64))
    log_slopes, first, second = np.log(slopes), np.zeros(len(slopes)), np.zeros(len(slopes))
    for step in range(steps):
        one = project(target, np.exp(log_slopes), positions)
        basis = _basis(len(target), one.slopes, positions)
        left = target - basis @ one.coefficients
        gradient = 2 * one.slopes * one.coefficients * ((left * phi) @ basis) / (target**2).sum()
        first = _MEANS[0] * first + (1 - _MEANS[0]) * gradient
        second = _MEANS[1] * second + (1 - _MEANS[1]) * gradient**2
        mean, square = (
            m / (1 - rate ** (step + 1)) for m, rate in zip((first, second), _MEANS, strict=True)
        )
        rate = learning_rate * (1 + np.cos(np.pi * step / steps)) / 2
        log_slopes = np.clip(log_slopes - rate * mean / (np.sqrt(square) + _TINY), -9.0, 5.0)
    return project(target, np.exp(log_slopes), positions)


def grid_start(target: Lags, heads: int, positions: Positions) -> Projected:
    """Return the grid of slopes whose sum is best when large coefficients are penalised. Training
    may start there.

    Without a penalty the best grids are steep ones: all heads look at lag 0, and the target is the
    small difference of large terms that cancel to twenty digits. Gradient descent makes no progress
    from there.
    """
    return min(
        (_project_priced(target, p, positions) for p in _grids(heads, positions)),
        key=lambda one: one.error,
    )


def _project_priced(
    target: Lags, slopes: Float64[np.ndarray, " head"], positions: Positions
) -> Projected:
    """Like :func:`project`, with a penalty price · Σ a² on the coefficients."""
    basis = np.vstack([_basis(len(target), slopes, positions), _PRICE**0.5 * np.eye(len(slopes))])
    wanted = np.concatenate([target, np.zeros(len(slopes))])
    coefficients, *_ = np.linalg.lstsq(basis, wanted, rcond=None)
    left = wanted - basis @ coefficients
    return Projected(slopes, coefficients, float((left**2).sum() / (target**2).sum()))


def _grids(heads: int, positions: Positions) -> list[Float64[np.ndarray, " head"]]:
    return [
        grid(positions, heads, scale, spread) for scale in _SCALES for spread in _SPREADS[positions]
    ]


def _rank_grids(target: Lags, heads: int, positions: Positions) -> list[Projected]:
    found = [project(target, p, positions) for p in _grids(heads, positions)]
    return sorted(found, key=lambda one: one.error)


def _improve_slopes(
    target: Lags, slopes: Float64[np.ndarray, " head"], positions: Positions
) -> Projected:
    def residuals(log_slopes: Float64[np.ndarray, " head"]) -> Lags:
        one = project(target, np.exp(log_slopes), positions)
        held: Lags = target - _basis(len(target), one.slopes, positions) @ one.coefficients
        return held

    start = np.log(np.maximum(slopes, 1e-3))
    best = least_squares(residuals, start, bounds=(-9.0, 5.0), max_nfev=_EVALUATIONS)
    return project(target, np.exp(best.x), positions)


def _basis(
    lags: int, slopes: Float64[np.ndarray, " head"], positions: Positions
) -> Float64[np.ndarray, "lag head"]:
    phi = phi_values(positions, np.arange(lags, dtype=np.float64))
    return np.exp(-np.outer(phi, slopes))
