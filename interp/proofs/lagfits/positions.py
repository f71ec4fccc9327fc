"""The basis functions e^{−p φ(s)} of relative positions, and their sums in closed form.

    lin   φ(s) = s            Σ_{s ≥ a} e^{−ps} = e^{−pa} / (1 − e^{−p})     geometric, p > 0
    log   φ(s) = log(1 + s)   Σ_{s ≥ a} (1 + s)^{−p} = ζ(p, 1 + a)           Hurwitz, p > 1

The Hurwitz zeta function is summed by Euler and Maclaurin's formula from 1 + a ≥ 48 on with 24
terms: relative error below 1e−24 for p ≤ 40, at a hundredth of a general routine's time.

Log positions with p ≤ 1 have no finite sum over all lags: no bound over unbounded rows exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import mpmath
import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGITS", "LEAST_SLOPE", "Positions", "basis", "phi", "phi_values", "tail"]

Positions = Literal["lin", "log"]
DIGITS = 80
"""Number of decimal digits in extended precision."""
_FROM, _TERMS = 48, 24
LEAST_SLOPE = {"lin": 0.0, "log": 1.0}


def phi(positions: Positions, s: int) -> Any:
    """The position function φ(s) in extended precision."""
    return mpmath.mpf(s) if positions == "lin" else mpmath.log(1 + s)


def phi_values(positions: Positions, s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The position function φ at lags ``s`` in float64, in the shape of ``s``."""
    return s if positions == "lin" else np.log1p(s)


def basis(positions: Positions, slopes: Sequence[Any], s: int) -> list[Any]:
    """The basis functions e^{−p φ(s)} for every slope p, in extended precision."""
    at = phi(positions, s)
    return [mpmath.exp(-p * at) for p in slopes]


def tail(positions: Positions, slopes: Sequence[Any], start: int) -> list[Any]:
    """The tail sums Σ_{s ≥ start} e^{−p φ(s)} for every slope p, in extended precision."""
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
    """The coefficients B_{2k} / (2k)! of Euler and Maclaurin's formula, for k from 1."""
    with mpmath.workdps(DIGITS):
        return tuple(
            mpmath.bernoulli(2 * k) / mpmath.factorial(2 * k) for k in range(1, _TERMS + 1)
        )
