"""Least absolute deviations with a penalty on coefficients, in extended precision.

    minimise over b   Σ_s |y_s − Σ_h A_sh b_h| + Σ_h |b_h|

by iteratively reweighted least squares: |e| is majorised by (e²/w + w)/2 with w = √(e_0² + η²) at
the last iterate e_0. The weighted residuals u_s = e_s/w_s then have |u_s| ≤ 1 and
|Σ_s u_s A_sh| ≤ 1 when the iteration has settled: they solve the dual problem. So Σ_s u_s y_s,
divided by the largest violation, is a *lower* bound on the minimum, settled or not. The systems
have condition numbers far beyond float64; numbers are integers in units of 2^−256.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BITS", "LeastFit", "as_float", "least_absolute"]

BITS = 256
_SHIFT = 64
_SHRINK = 0.75
Integers = NDArray[Any]


@dataclass(frozen=True)
class LeastFit:
    """The best solution found, and a lower bound on the minimum.

    Attributes:
        coefficients: The coefficients b_h in units of 2^−256, ``[head]``.
        value: The value of the objective at b.
        bound: A lower bound on the minimum of the objective.
        dual: u_s that proves it, scaled to satisfy both constraints, ``[row]``.
    """

    coefficients: Integers
    value: float
    bound: float
    dual: NDArray[np.float64]


def as_float(values: Integers) -> NDArray[np.float64]:
    """Convert integers in units of 2^−256 to floats."""
    return np.array([int(v) / (1 << BITS) for v in values], dtype=np.float64)


def least_absolute(
    rows: Integers, target: Integers, *, iterations: int = 60, gap: float = 0.02
) -> LeastFit:
    """Minimise the objective; stop when value and lower bound are within ``gap`` of each other.

    Args:
        rows: A in units of 2^−256, ``[row, head]``, columns scaled so that |b_h| costs 1.
        target: The target y in units of 2^−256, ``[row]``.
        iterations: The largest number of iterations.
        gap: The relative gap at which the iteration stops.
    """
    n_rows, heads = rows.shape
    y = as_float(target)
    on_rows, on_heads = np.ones(n_rows), np.ones(heads)
    best, bound, dual = None, 0.0, np.zeros(n_rows)
    for step in range(iterations):
        weighted = (rows * _whole(on_rows)[:, None]) >> _SHIFT
        gram = weighted.T.dot(rows) >> BITS
        gram[np.diag_indices(heads)] += _whole(on_heads) << (BITS - _SHIFT)
        b = _solve(gram, weighted.T.dot(target) >> BITS)
        left = target - (rows.dot(b) >> BITS)
        errors, prices = as_float(left), as_float(b)
        value = float(np.abs(errors).sum() + np.abs(prices).sum())
        u = on_rows * errors
        pull = as_float(weighted.T.dot(left) >> BITS)
        u = u / max(np.abs(u).max(), np.abs(pull).max(), 1.0)
        if u @ y > bound:
            bound, dual = float(u @ y), u
        if best is None or value < best[0]:
            best = (value, b)
        if best[0] - bound <= gap * best[0]:
            break
        smooth = value / n_rows * _SHRINK**step
        on_rows = 1 / np.hypot(errors, smooth)
        on_heads = 1 / np.hypot(prices, smooth)
    value, b = best if best is not None else (0.0, np.zeros(heads, dtype=object))
    return LeastFit(b, value, bound, dual)


def _whole(weights: NDArray[np.float64]) -> Integers:
    return np.array([int(w * (1 << _SHIFT)) for w in weights], dtype=object)


def _solve(gram: Integers, right: Integers) -> Integers:
    """Solve a positive definite linear system by Gaussian elimination."""
    n = len(right)
    table = np.column_stack([gram, right])
    for k in range(n - 1):
        factors = np.array(
            [(int(v) << BITS) // int(table[k, k]) for v in table[k + 1 :, k]], dtype=object
        )
        table[k + 1 :, k:] -= (factors[:, None] * table[k, k:]) >> BITS
    solution = np.zeros(n, dtype=object)
    for k in reversed(range(n)):
        known = int(table[k, k + 1 : n].dot(solution[k + 1 :])) >> BITS if k < n - 1 else 0
        solution[k] = ((int(table[k, n]) - known) << BITS) // int(table[k, k])
    return solution
