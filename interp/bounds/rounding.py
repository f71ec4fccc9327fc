"""How far a floating-point computation can be from the real number it stands for.

Two things are rounded: the *model*, which somebody will evaluate in its own dtype, and *our own*
arithmetic, float64. For a sum of n products in any order, with or without fused operations,

    |computed − real| ≤ γ_n Σ|a_i||b_i|,    γ_n = n u / (1 − n u)

with u the unit roundoff (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1). Every
operation of :mod:`interp.bounds.affine` adds γ_n for both to the radius of its result. So a bound
is about the model as a real function of its stored weights *and* about every evaluation of it in
its dtype or a wider one, in any order of summation.

Functions are less exact than sums: a library's e^x is taken to be within :data:`EXP` units, since
torch's vectorised softmax promises no more than 20 units in the last place (its float32 softmax was
seen 68 units from the real one).

Not covered: TF32 or bfloat16 multiplication inside a float32 model, and results that overflow (the
bound is then infinite). Underflow adds at most the smallest normal number of the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter

import numpy as np
from jaxtyping import Float64

__all__ = ["DTYPES", "EXP", "UP", "Arithmetic", "gamma", "share"]

UP = 1.0 + 2.0**-36
"""Sums of positive float64 numbers, at most 2^15 of them, times this are not below the real sum."""

EXP = 48
"""Units of roundoff by which a library's e^x may be off; 20 units in the last place are 40."""

DTYPES = {
    "float64": (2.0**-53, 2.0**-1022, 2.0**1023),
    "float32": (2.0**-24, 2.0**-126, 2.0**127),
    "real": (0.0, 0.0, inf),
}
"""Dtype → unit roundoff, smallest normal number, size that must not be exceeded. ``real`` is the
model as a function of real numbers: nothing but our own arithmetic is rounded."""

_OURS, _TINY = 2.0**-53, 2.0**-1020


def gamma(n: int, u: float) -> float:
    """γ_n = n u / (1 − n u), rounded up; infinite where n u ≥ ½."""
    return inf if n * u >= 0.5 else n * u / (1 - n * u) * UP


def share(right: int, total: int) -> float:
    """right/total of whole numbers, rounded down; one only if they are equal."""
    return 1.0 if right == total else max(0.0, nextafter(right / total, 0.0))


@dataclass
class Arithmetic:
    """Whose rounding a bound covers, and how much work was done for it.

    Attributes:
        dtype: One of :data:`DTYPES`: that in which the model is evaluated.
        multiplications: Counted so far: those of centres and generators. The sums of absolute
            values that bound the rounding are not counted.
        symbols: Noise symbols made so far.
        budget: Most float64 numbers that the generators of one form may hold; beyond that, new
            noise is kept as radius.
    """

    dtype: str = "real"
    multiplications: int = 0
    symbols: int = 0
    budget: int = 2**24

    def error(
        self, n: int, magnitude: Float64[np.ndarray, "*shape"]
    ) -> Float64[np.ndarray, "*shape"]:
        """Most by which n rounded operations on terms of this total size can be off.

        ``magnitude`` is Σ|a_i||b_i| for a sum of products, |y| for n operations on one number.
        """
        unit, tiny, most = DTYPES[self.dtype]
        relative = gamma(n, unit) + gamma(n, _OURS)
        off = magnitude * (relative * UP) + n * (tiny + _TINY)
        known = magnitude <= most
        return np.asarray(off if known.all() else np.where(known, off, inf))
