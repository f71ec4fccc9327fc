"""Fit the direction that holds a latent, batch by batch.

The ridge regression of :func:`probes.linear.direction`, its standardisation included, is a function
of Σx, Σxxᵀ, Σxy and Σy: these are kept, and no row is. A direction that predicts a latent shows
that it is present, not that anything reads it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import solve

from probes.linear import PENALTY, Features, Latent

__all__ = ["DirectionSums"]

_ROUNDING = float(np.finfo(np.float64).eps)


class DirectionSums:
    """Running moments of activations and a latent, from which its direction follows."""

    def __init__(self) -> None:
        self._shift: NDArray[np.float64] | None = None

    def add(self, features: Features, latent: Latent) -> None:
        """Add some rows at their sampled positions."""
        flat = features.reshape(-1, features.shape[-1]).astype(np.float64)
        known = np.concatenate([flat, latent.reshape(-1, 1)], axis=1)
        if self._shift is None:  # large means then cost no digits
            self._shift = known.mean(0)
            self._count, self._total = 0, np.zeros_like(self._shift)
            self._products = np.zeros((len(self._shift),) * 2)
        known = known - self._shift
        self._count += len(known)
        self._total += known.sum(0)
        self._products += known.T @ known

    @property
    def size(self) -> int:
        """How many numbers the sums take in memory; it does not grow with rows."""
        return 0 if self._shift is None else self._products.size + 2 * self._total.size

    def direction(self) -> Float[np.ndarray, " feature"]:
        """The vector w for which ⟨w, activation⟩ + constant predicts the latent on all rows."""
        if self._shift is None:
            return np.zeros(0)
        off = self._total / self._count
        centred = self._products - self._count * np.outer(off, off)
        variance = np.maximum(np.diagonal(centred)[:-1] / self._count, 0.0)
        doubt = self._count * _ROUNDING * (self._shift + off)[:-1]
        scale = np.where(variance > doubt**2, np.sqrt(variance), 1.0)  # 1 for a constant
        gram = centred[:-1, :-1] / np.outer(scale, scale)
        gram[np.diag_indices(len(gram))] += PENALTY * self._count
        found: NDArray[np.float64] = solve(gram, centred[:-1, -1] / scale, assume_a="pos") / scale
        return found
