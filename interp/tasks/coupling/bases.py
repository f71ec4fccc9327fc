"""Orthonormal bases of L²[0, 1], and the one coupling that has a closed form.

    sine          φ_k(x) = √2 sin(2πkx)              cosine    φ_k(x) = √2 cos(2πkx)
    legendre      φ_k(x) = √(2k+1) P_k(2x − 1)       k = 1, 2, …

All have mean zero, so a coupling Σ σ_k φ_k(u) ψ_k(v) has none of the row shifts that a softmax
cannot see. With sines on both sides and σ_k = k^{−α} the infinite sum is

    ρ(u, v) = C_α(u − v) − C_α(u + v),   C_α(x) = Σ_k k^{−α} cos(2πkx),
    C_1(x) = −log(2 |sin πx|),
    C_α(x) = Γ(1−α) sin(πα/2) (2πx)^{α−1} + Σ_j (−1)^j ζ(α − 2j) (2πx)^{2j} / (2j)!,  0 < x ≤ 1/2.

For α ≤ 1 it is infinite at u = v: a position that may attend to itself then attends to nothing
else, and the target is the input. Use it with positions that do not attend to themselves, or a
finite rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import mpmath
import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["BASES", "Basis", "infinite_sine_coupling"]

_CLOSEST = 2.0**-26
"""Points closer than this are treated as this far apart: the float32 spacing just below 1/2."""

_TERMS = 40


@dataclass(frozen=True)
class Basis:
    """φ_1, φ_2, … on [0, 1].

    Attributes:
        values: (x [...], count) → float64 φ_1 … φ_count at x, ``[..., count]``.
        largest: k → sup |φ_k|.
        curvature: k → a bound on |φ_k″|.
        polynomial: Whether Gauss–Legendre quadrature is exact, rather than equal spacing.
    """

    values: Callable[[Tensor, int], Tensor]
    largest: Callable[[int], float]
    curvature: Callable[[int], float]
    polynomial: bool = False

    def quadrature(self, degree: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Nodes and weights on [0, 1], exact for products of basis functions of summed order up to
        ``degree``."""
        if self.polynomial:
            nodes, weights = np.polynomial.legendre.leggauss(degree // 2 + 1)
            return (nodes + 1) / 2, weights / 2
        count = degree + 1
        return (np.arange(count) + 0.5) / count, np.full(count, 1 / count)


def _sines(x: Tensor, count: int) -> Tensor:
    k = torch.arange(1, count + 1, dtype=torch.float64, device=x.device)
    return sqrt(2) * torch.sin(2 * pi * x.double()[..., None] * k)


def _cosines(x: Tensor, count: int) -> Tensor:
    k = torch.arange(1, count + 1, dtype=torch.float64, device=x.device)
    return sqrt(2) * torch.cos(2 * pi * x.double()[..., None] * k)


def _legendre(x: Tensor, count: int) -> Tensor:
    """By the recurrence (k + 1) P_{k+1} = (2k + 1) z P_k − k P_{k−1}."""
    z = 2 * x.double() - 1
    found = [torch.ones_like(z), z]
    for k in range(1, count):
        found.append(((2 * k + 1) * z * found[k] - k * found[k - 1]) / (k + 1))
    return torch.stack([sqrt(2 * k + 1) * found[k] for k in range(1, count + 1)], dim=-1)


def _legendre_curvature(k: int) -> float:
    """d²/dx² = 4 d²/dz², and |P_k″| is largest at z = ±1: (k−1) k (k+1) (k+2) / 8."""
    return 4 * sqrt(2 * k + 1) * (k - 1) * k * (k + 1) * (k + 2) / 8


def _wave_curvature(k: int) -> float:
    return sqrt(2) * (2 * pi * k) ** 2


BASES: dict[str, Basis] = {
    "sine": Basis(_sines, lambda k: sqrt(2), _wave_curvature),
    "cosine": Basis(_cosines, lambda k: sqrt(2), _wave_curvature),
    "legendre": Basis(_legendre, lambda k: sqrt(2 * k + 1), _legendre_curvature, polynomial=True),
}


def infinite_sine_coupling(
    u: Float64[Tensor, "..."], v: Float64[Tensor, "..."], alpha: float
) -> Float64[Tensor, "..."]:
    """Σ_{k ≥ 1} k^{−α} · √2 sin(2πku) · √2 sin(2πkv), for 1/2 < α < 2.

    Closer than 2^{−26}, u and v count as 2^{−26} apart, so that the value stays finite.
    """
    return _cosine_sum(u - v, alpha) - _cosine_sum(u + v, alpha)


def _cosine_sum(x: Tensor, alpha: float) -> Tensor:
    """C_α at any real x, by period and symmetry."""
    x = (x - x.round()).abs().clamp_min(_CLOSEST)
    if alpha == 1:
        return -torch.log(2 * torch.sin(pi * x))
    singular, regular = _coefficients(alpha)
    angle = 2 * pi * x
    square, total = angle**2, torch.zeros_like(x)
    for coefficient in reversed(regular):
        total = total * square + coefficient
    return singular * angle ** (alpha - 1) + total


@lru_cache(maxsize=16)
def _coefficients(alpha: float) -> tuple[float, tuple[float, ...]]:
    """Of (2πx)^{α−1}, and of (2πx)^{2j}; at x = 1/2 term j is of order 4^{−j}."""
    singular = mpmath.gamma(1 - alpha) * mpmath.sin(mpmath.pi * alpha / 2)
    regular = [
        (-1) ** j * mpmath.zeta(alpha - 2 * j) / mpmath.factorial(2 * j) for j in range(_TERMS)
    ]
    return float(singular), tuple(float(value) for value in regular)
