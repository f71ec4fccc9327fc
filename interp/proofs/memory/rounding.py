"""Bounds on the rounding error of evaluating a sum of heads in floating point (`memory` §1.4).

    Σ_h a_h Σ_j e^{−p_h φ(j)} v_j,   |v_j| ≤ 1

with j = s for a fixed lag and j = s + T − t_i for a shifted one.

A term with c roundings, each of which changes it by a factor within 1 ± u, has an error of at most
(e^{cu/(1−u)} − 1)·|a_h| e^{−p_h φ(j)}; this is not only to first order. The roundings are

    2                exponential                      1 + K_h   products and sums over keys
    p_h (6T + 4φ)    products and sum in the score    H + 2     coefficient, sum over heads
    p_h δ/u          a location with an error of δ

Adding a term that is smaller than the last digit of the sum costs no more than the term, so K_h is
the number of keys that matter: 53 log 2/p_h for exponentials. In a basis other than that of the
slots every read is a product with a dense vector, with an error of (2D + 6) u ‖x‖ (D products, as
many sums, weights that are themselves rounded, and a basis orthogonal to D u), and the errors of
all heads of the layer add up in every direction. All of these are worst cases: the rounding errors
of random inputs are smaller.

*The choice of exponentials* has the least total of fit error and rounding. A closer fit needs
larger coefficients. :func:`~interp.proofs.lagfits.fit_lag` balances the two for a given price of
rounding. Models differ in that price (shifted kernels and dense weights round more), so fits for
several prices are made and the one with the least total is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log, sqrt

import numpy as np
from jaxtyping import Float64

from interp.proofs.lagfits import LagFit, fit_lag


@dataclass(frozen=True)
class Summation:
    """The order and precision in which a model sums its heads, on which rounding depends.

    Attributes:
        unit: The unit roundoff u of the floating-point format.
        keys: The number of positions in the longest input.
        heads: The number of heads that write one slot; in a dense basis, all heads of the layer.
        shift: The largest location T of an adaptive memory, 0 for a fixed one.
        location_error: The error δ of the location that shifts the kernel.
        log: Whether positions are logarithmic.
        softmax: Whether heads are normalised, which adds a sum over keys and a division.
        channels: How many values a head carries.
        width: The width D, if the basis is not that of the slots; 0 if it is.
        reach: Bound on the residual stream's norm, in the same case.
    """

    unit: float
    keys: int
    heads: int
    shift: int = 0
    location_error: float = 0.0
    log: bool = False
    softmax: bool = False
    channels: int = 1
    width: int = 0
    reach: float = 0.0


def read_error(width: int) -> float:
    """Return the error of a product with a dense unit vector, 2D + 6, in units of u‖x‖."""
    return 2.0 * width + 6.0


def sum_rounding(
    slopes: Float64[np.ndarray, " head"],
    coefficients: Float64[np.ndarray, " head"],
    how: Summation,
) -> float:
    """Return a bound on the rounding error of the sum, for values of at most 1.

    Args:
        slopes: The slopes p_h.
        coefficients: The coefficients a_h of e^{−p_h φ(j)}, with j ≥ 0.
        how: How the sum is computed. In a dense basis the bound is on the norm of the error that
            the heads leave in the whole residual stream.
    """
    j = np.arange(how.keys + how.shift, dtype=np.float64)
    phi = np.log1p(j) if how.log else j
    p = np.abs(slopes)[:, None]
    count = np.full_like(p, how.keys) if how.log else np.minimum(how.keys, 53 * log(2) / p + 1)
    roundings = 2 + p * (6 * how.shift + 4 * phi) + (1 + count) + (how.heads + 2)
    roundings = roundings + p * how.location_error / how.unit
    roundings = roundings + how.softmax * (how.keys + 4)
    if how.width:
        read = read_error(how.width) * how.reach
        gate = p * how.channels if how.shift else 0.0
        spread = 2 * how.channels + 2 + how.heads * (how.channels - 1)
        roundings = sqrt(how.channels) * (roundings + read * (1 + gate) + spread)
    off = np.expm1(1.01 * how.unit * roundings)
    return float((np.abs(coefficients)[:, None] * np.exp(-p * phi) * off).sum())


_PRICES = tuple(4.0**k for k in range(9))


def select_lag(lag: int, how: Summation) -> LagFit:
    """Return the fit of a lag that has the least error in a model that computes sums as ``how``
    says."""
    return min(_fits(lag, how.unit), key=lambda fit: slot_error(fit, how))


def slot_error(fit: LagFit, how: Summation) -> float:
    """Return a bound on |Σ_h a_h Σ_j e^{−p_h j} x_j − x_T| for |x| ≤ 1: the fit's error plus
    rounding.

    ``how`` says in what way the sum is computed.
    """
    return fit.fit_error + sum_rounding(fit.slopes, fit.coefficients, how)


@lru_cache(maxsize=64)
def _fits(lag: int, unit: float) -> tuple[LagFit, ...]:
    return tuple(fit_lag(lag, unit_roundoff=unit * price) for price in _PRICES)
