"""When a neuron is on, as a comparison of counts with whole numbers.

A neuron that reads averages over the prefix has the pre-activation Σ_q n_q α_q + α_0, up to the
factor 1 / (i + 1): n_q of the i tokens so far are of class q, and α_0 belongs to BOS. It is on
exactly if

    Σ_q k_q n_q ≥ θ,      k_q and θ whole,

when α = λ (k + ε) and no n with Σ n_q ≤ n can carry Σ ε_q n_q + α_0 / λ across a whole number.
That is checked, not assumed: the comparison returned is proved equivalent up to the length n. The
smallest λ⁻¹ that passes is taken. Weights that are no multiples of one scale, as in trained models,
have no such comparison unless n is small; None says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["IntegerComparison", "integer_comparison"]

_LARGEST = 400
_NOISE = 1e-9


@dataclass(frozen=True)
class IntegerComparison:
    """Σ_q weights[q] n_q ≥ threshold.

    Attributes:
        weights: One a class; the first that is not 0 is positive, and they share no divisor.
        threshold: θ.
        residual: Largest |ε_q|: how far the neuron's coefficients are from multiples of one scale.
    """

    weights: tuple[int, ...]
    threshold: int
    residual: float


def integer_comparison(
    alpha: Float[np.ndarray, " classes"], bos: float, longest: int
) -> IntegerComparison | None:
    """The comparison that tells whether Σ_q n_q α_q + α_0 > 0, or whether it does not.

    Args:
        alpha: α_q.
        bos: α_0.
        longest: n: the most tokens that are counted.

    Returns:
        None if the sum's sign is always the same, or no comparison could be proved.
    """
    size = float(np.abs(alpha).max(initial=0.0))
    noise = _NOISE * max(size, abs(bos))
    if size <= noise:
        return None
    low, high = bos + longest * min(0.0, alpha.min()), bos + longest * max(0.0, alpha.max())
    if low > noise or high <= noise:
        return None
    for multiple in range(1, _LARGEST + 1):
        scale = size / multiple
        weights = np.rint(alpha / scale)
        if np.abs(alpha / scale - weights).max() * longest > 2.0:
            continue
        scale = _fitted(alpha, weights) or scale
        off = alpha / scale - weights
        least, most = longest * min(0.0, off.min()), longest * max(0.0, off.max())
        threshold = int(np.floor(-bos / scale - least + _NOISE)) + 1
        if threshold - 1 <= -bos / scale - most + _NOISE:
            return _canonical(weights.astype(np.int64), threshold, float(np.abs(off).max()))
    return None


def _fitted(alpha: np.ndarray, weights: np.ndarray) -> float | None:
    """λ of α ≈ λ k + δ; None where k is the same for all classes."""
    centred = weights - weights.mean()
    spread = float(centred @ centred)
    return float(centred @ alpha) / spread if spread else None


def _canonical(weights: np.ndarray, threshold: int, residual: float) -> IntegerComparison:
    """The same comparison or its negation, in lowest terms and with a positive first weight."""
    if weights[np.flatnonzero(weights)[0]] < 0:
        weights, threshold = -weights, 1 - threshold
    divisor = int(np.gcd.reduce(weights))
    lowest = tuple(int(w) // divisor for w in weights)
    return IntegerComparison(lowest, -((-threshold) // divisor), residual)
