"""A nonlinear function on an interval, as a linear one and a bound on the rest.

    |f(x) − (λx + μ)| ≤ ν   for every x in [low, high]

For each f: λ is a slope, and f − λx is bounded from below and above on the interval by [a, b]; then
μ = (a + b)/2 and ν = (b − a)/2. Any λ is sound, the choice only makes ν small.

    relu      λ = high/(high − low) where the sign is not fixed: f − λx lies in [0, −λ low], as it
              is convex, zero at 0 and equal at the ends; where the sign is fixed nothing is lost
    gelu      λ the secant's slope; f − λx on a grid of step h is within h²/8 · sup|f″| of the
              grid's values, sup|f″| = 2φ(0) < 0.798; or, on wide intervals, relu with
              −0.17 < gelu − relu ≤ 0, whichever is narrower
    exp, 1/x  convex (x > 0 for 1/x): f − λx is largest at an end and smallest where f′ = λ; the
              tangent at any point is a lower bound, so that point need not be exact

Function values come from numpy and scipy and are widened by 16 units of roundoff, more than their
documented errors. The model's own rounding of f is not here: :func:`apply` adds it to the radius.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64
from scipy.special import erf

from interp.bounds.affine import Affine, add, exactly, fresh, scale
from interp.bounds.rounding import UP, Arithmetic

__all__ = ["apply", "exp", "gelu", "relu", "sine"]

Array = Float64[np.ndarray, "..."]
Relaxation = tuple[Array, Array, Array]
"""λ, μ and ν, in the shape of the intervals."""

_GRID = 33
_OURS = 2.0**-49  # 16 units of roundoff
_CURVATURE = 0.798
_DIP = 0.17  # gelu − relu is above −0.17 everywhere


def apply(a: Affine, f: Callable[[Array, Array], Relaxation], ar: Arithmetic) -> Affine:
    """f of each quantity: its linear part keeps the symbols, the rest is a new one.

    The model's rounding of f is taken to be at most 8 units of roundoff of max(|x|, |f|), which
    every library's relu, gelu and exp keeps.
    """
    low, high = a.bounds()
    slope, shift, rest = f(low, high)
    line = add(scale(a, slope, ar), exactly(shift), ar)
    known = np.isfinite(slope + shift + rest)
    noise = np.where(known, rest, 0.0)
    size = np.where(known, np.maximum(a.magnitude, line.magnitude + rest), np.inf)
    radius = (line.radius + ar.error(8, size)) * UP
    return fresh(Affine(line.centre, line.generators, radius), noise, ar)


def relu(low: Array, high: Array) -> Relaxation:
    """max(x, 0)."""
    mixed = (low < 0) & (high > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(mixed, high / (high - low), (low >= 0).astype(np.float64))
        slope = np.where(mixed, np.clip(slope, 0.0, 1.0), slope)
        most = np.where(mixed, np.maximum((1 - slope) * high, -slope * low), 0.0)
    return slope, most / 2 * UP, most / 2 * UP


def gelu(low: Array, high: Array) -> Relaxation:
    """x Φ(x), Φ the normal distribution function."""
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.where(np.isfinite(high - low), high - low, 0.0)
        start = np.where(np.isfinite(low), low, 0.0)
        ends = _gelu(start), _gelu(start + width)
        slope = np.where(width > 1e-9, (ends[1] - ends[0]) / np.where(width > 0, width, 1), 0.5)
    step = width / (_GRID - 1) * UP
    points = start + step * np.arange(_GRID).reshape(-1, *(1,) * low.ndim)
    values = _gelu(points)
    rest = values - slope * points
    size = np.abs(values).max(0) + np.abs(slope) * np.abs(points).max(0)
    slack = step**2 / 8 * _CURVATURE * UP + size * _OURS * 2
    a, b = rest.min(0) - slack, rest.max(0) + slack
    r_slope, r_shift, r_rest = relu(low, high)
    a_relu, b_relu = r_shift - r_rest - _DIP, r_shift + r_rest
    wide = (b - a > b_relu - a_relu) | ~np.isfinite(high - low)
    slope = np.where(wide, r_slope, slope)
    return slope, *_middle(np.where(wide, a_relu, a), np.where(wide, b_relu, b))


def sine(omega: float, middle: Array, half: Array) -> Relaxation:
    """sin(ω(c + hε)), |ε| ≤ 1, as sin ωc + ω cos(ωc) h ε and a rest: the first two and the rest.

    The rest is at most (ωh)²/2, and a few units of roundoff of each factor and argument.
    """
    sizes = (1 + np.abs(omega * middle)) * (1 + np.abs(omega) * half)
    rest = ((omega * half) ** 2 / 2 + 2.0**-50 * sizes) * UP
    return np.sin(omega * middle), omega * np.cos(omega * middle) * half, rest


def exp(low: Array, high: Array) -> Relaxation:
    """e^x."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _convex(low, high, np.exp, np.exp, np.log)


def inverse(low: Array, high: Array) -> Relaxation:
    """1/x on positive intervals; unbounded on others."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        good = low > 0
        found = _convex(
            np.where(good, low, 1.0),
            np.where(good, high, 1.0),
            lambda x: 1 / x,
            lambda x: -1 / x**2,
            lambda s: 1 / np.sqrt(-s),
        )
        slope, shift, rest = found
        return slope, shift, np.where(good, rest, np.inf)


def _convex(
    low: Array,
    high: Array,
    f: Callable[[Array], Array],
    derivative: Callable[[Array], Array],
    touching: Callable[[Array], Array],
) -> Relaxation:
    """``touching(s)`` is about where the derivative is s; it is moved into the interval."""
    f_low, f_high = f(low), f(high)
    narrow = high - low <= 1e-9 * np.maximum(np.abs(low), 1.0)
    width = np.where(high > low, high - low, 1.0)
    slope = np.where(narrow, derivative(low), (f_high - f_low) / width)
    point = np.clip(np.nan_to_num(touching(slope)), low, high)
    f_point, tangent = f(point), derivative(point)
    # Below the function lies its tangent at the point; on the interval, tangent − λx is least at
    # an end.
    under = np.minimum(
        f_point + tangent * (low - point) - slope * low,
        f_point + tangent * (high - point) - slope * high,
    )
    over = np.maximum(f_low - slope * low, f_high - slope * high)
    reach = np.maximum(np.abs(low), np.abs(high))
    size = np.maximum(f_low, f_high) + (np.abs(slope) + np.abs(tangent)) * 2 * reach
    return slope, *_middle(under - size * _OURS, over + size * _OURS)


def _middle(a: Array, b: Array) -> tuple[Array, Array]:
    """μ and ν of the interval [a, b]."""
    middle = (a + b) / 2
    return middle, np.maximum(b - middle, middle - a) * UP


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + erf(x / np.sqrt(2))))
