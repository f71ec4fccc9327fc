"""The expectation E[φ(u)φ(v)] for Gaussian u, v: how an infinitely wide layer changes a kernel.

With variances p, q and covariance c, θ = arccos(c/√(pq)):

    relu   √(pq) (sin θ + (π − θ) cos θ) / 2π
    erf    (2/π) arcsin(2c / √((1 + 2p)(1 + 2q)))
    gelu   Gauss–Hermite quadrature (no closed form is used)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

__all__ = ["ACTIVATIONS", "dual"]

Array = NDArray[np.float64]
_NODES = 60


def dual(name: str, kernel: Array, other: Array, cross: Array) -> Array:
    """The expectation E[φ(u)φ(v)] for every entry of a kernel.

    Args:
        name: ``relu``, ``erf`` or ``gelu``.
        kernel, other: Variances of u and of v; they broadcast against ``cross``.
        cross: The covariances of u and v.
    """
    return ACTIVATIONS[name](kernel, other, cross)


def _relu(p: Array, q: Array, c: Array) -> Array:
    size = np.sqrt(p * q)
    cosine = np.clip(np.divide(c, size, out=np.zeros_like(c), where=size > 0), -1, 1)
    theta = np.arccos(cosine)
    return np.asarray(size * (np.sin(theta) + (np.pi - theta) * cosine) / (2 * np.pi))


def _erf(p: Array, q: Array, c: Array) -> Array:
    return np.asarray(2 / np.pi * np.arcsin(2 * c / np.sqrt((1 + 2 * p) * (1 + 2 * q))))


def _gelu(p: Array, q: Array, c: Array) -> Array:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    p, q, c = np.broadcast_arrays(p, q, c)
    slope = np.divide(c, np.sqrt(p), out=np.zeros_like(c), where=p > 0)[..., None, None]
    rest = np.sqrt(np.clip(q[..., None, None] - slope**2, 0, None))
    u = np.sqrt(p)[..., None, None] * nodes[:, None]
    v = slope * nodes[:, None] + rest * nodes
    return np.asarray(np.einsum("...ij,i,j", _gelu_of(u) * _gelu_of(v), weights, weights))


def _gelu_of(x: Any) -> Any:
    return x * (1 + erf(x / np.sqrt(2))) / 2


ACTIVATIONS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "relu": _relu,
    "erf": _erf,
    "gelu": _gelu,
}
