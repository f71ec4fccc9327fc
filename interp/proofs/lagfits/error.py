"""The ℓ1 error, over all lags s ≥ 0, of a sum with given slopes and coefficients.

    lag T:     Σ_s |1[s = T] − K(s)|        K(s) = Σ_h a_h e^{−p_h φ(s)}
    kernel ρ:  Σ_s |ρ(s) − K(s)|

For a lag the sum is exact: with heads in order of falling range, K has at most as many sign
changes beyond s as the partial sums of a_h e^{−p_h φ(s)} have (Laguerre's rule of signs). Lags are
summed one by one until no change is left (the tail is then one closed-form sum) or one (found by
bisection). Where neither happens within 4096 lags, the rest is bounded by Σ_h |a_h| tail_h.

On a row the sum ends at the position t, and a softmax divides each term by what has come so far:

    row:       Σ_{s ≤ t} |ρ(s) − Σ_h a_h (Z_∞/Z_t) e^{−p_h φ(s)}|    Z_t = Σ_{s ≤ t} e^{−p_h φ(s)}

which is summed as it is, in whole numbers of 2^{−266}, because large coefficients cancel.

For a kernel nothing bounds the sign changes: 20 000 lags are summed one by one, and the sum beyond
counts as one of one sign. It is an estimate, good to what the beyond hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from interp.proofs.lagfits.positions import DIGITS, Positions, basis, tail
from interp.tasks.memory.kernels import MemoryKernel

__all__ = ["errors_so_far", "kernel_error", "lag_error", "lags_beyond"]

_FAR = 4096
_KERNEL_LAGS = 20_000
_BITS = 266
"""Binary digits behind the point of a term: the 80 decimal ones of the extended precision."""
_NOTHING = 1e4  # e to the minus this is below every float


def lag_error(
    positions: Positions, slopes: Sequence[float], coefficients: Sequence[float], lag: int
) -> float:
    """The error Σ_s |1[s = lag] − K(s)| of given numbers, exact or a bound from above."""
    with mpmath.workdps(DIGITS):
        heads = sorted(
            (mpmath.mpf(p), mpmath.mpf(a)) for p, a in zip(slopes, coefficients, strict=True)
        )
        p, a = [h[0] for h in heads], [h[1] for h in heads]
        error, start, stop = mpmath.mpf(0), 0, lag + 17
        while True:
            for s in range(start, stop):
                error += abs((s == lag) - mpmath.fdot(a, basis(positions, p, s)))
            start, stop = stop, 2 * stop
            changes = _sign_changes(positions, p, a, start)
            if changes <= 1:
                return float(error + _rest(positions, p, a, start, changes))
            if start >= _FAR:
                terms = zip(a, tail(positions, p, start), strict=True)
                return float(error + mpmath.fsum(abs(c) * t for c, t in terms))


def _sign_changes(positions: Positions, p: list[Any], a: list[Any], start: int) -> int:
    """A bound on how many sign changes of K lie beyond ``start``; it is exact up to an even
    number."""
    total, signs = mpmath.mpf(0), []
    for c, value in zip(a, basis(positions, p, start), strict=True):
        total += c * value
        if total != 0:
            signs.append(total > 0)
    return sum(one != other for one, other in pairwise(signs))


def _rest(positions: Positions, p: list[Any], a: list[Any], start: int, changes: int) -> Any:
    """The sum Σ_{s ≥ start} |K(s)|, if K changes its sign there at most once."""
    whole = mpmath.fdot(a, tail(positions, p, start))
    if changes == 0:
        return abs(whole)

    def positive(s: int) -> bool:
        return bool(mpmath.fdot(a, basis(positions, p, s)) > 0)

    first, low, high = positive(start), start, 2 * start
    while positive(high) == first:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if positive(middle) == first else (low, middle)
    after = mpmath.fdot(a, tail(positions, p, high))
    return abs(whole - after) + abs(after)


def kernel_error(
    positions: Positions,
    slopes: Sequence[float],
    coefficients: Sequence[float],
    kernel: MemoryKernel,
) -> float:
    """The error Σ_s |ρ(s) − K(s)|; lags beyond 20 000 count as one sum of one sign."""
    p, a = np.asarray(slopes, dtype=np.float64), np.asarray(coefficients, dtype=np.float64)
    s = np.arange(_KERNEL_LAGS, dtype=np.float64)
    at = s if positions == "lin" else np.log1p(s)
    near = np.abs(kernel.values(s) - np.exp(-np.outer(at, p)) @ a).sum()
    with mpmath.workdps(DIGITS):
        exact = [mpmath.mpf(float(v)) for v in p]
        held = tail(positions, exact, _KERNEL_LAGS)
        far = mpmath.fdot([mpmath.mpf(float(v)) for v in a], held)
    return float(near + abs(lags_beyond(kernel, _KERNEL_LAGS) - float(far)))


def errors_so_far(
    positions: Positions,
    slopes: Sequence[float],
    coefficients: Sequence[float],
    wanted: Float64[np.ndarray, " lag"],
    *,
    softmax: bool = False,
) -> Float64[np.ndarray, " pos"]:
    """The error Σ_{s ≤ t} |wanted(s) − held_t(s)| at every position t of a row.

    Args:
        positions: ``lin`` or ``log``.
        slopes: The slopes p_h.
        coefficients: The coefficients a_h; with a softmax those of settled heads.
        wanted: What every lag should weigh, ``[lag]``, as many as the row is long.
        softmax: Whether each head is divided by its sum so far, as a share of its limit.
    """
    with mpmath.workdps(DIGITS):
        p, a = [mpmath.mpf(float(v)) for v in slopes], [mpmath.mpf(float(v)) for v in coefficients]
        powers = [basis(positions, p, s) for s in range(len(wanted))]
        limits = tail(positions, p, 0) if softmax else [mpmath.mpf(1)] * len(p)
        so_far, held = [mpmath.mpf(0)] * len(p), []
        for row in powers:
            so_far = [z + value for z, value in zip(so_far, row, strict=True)]
            shares = zip(a, limits, so_far, strict=True)
            held.append([c * z / now if softmax else c for c, z, now in shares])
        terms, factors = _whole(powers, _BITS), _whole(held, _BITS)
        target = _whole([[mpmath.mpf(float(v))] for v in wanted], 2 * _BITS)[:, 0]
    rows = range(1, len(wanted) + 1)
    found = (abs(target[:t] - terms[:t] @ factors[t - 1]).sum() for t in rows)
    return np.array([error / (1 << 2 * _BITS) for error in found])


def _whole(values: Sequence[Sequence[Any]], bits: int) -> NDArray[np.object_]:
    """Numbers in extended precision as whole multiples of 2^−bits."""
    return np.array([[int(mpmath.ldexp(v, bits)) for v in row] for row in values], dtype=object)


def lags_beyond(kernel: MemoryKernel, start: int) -> float:
    """The kernel's tail Σ_{s ≥ start} ρ(s), in closed form or by the midpoint rule on [start − ½,
    ∞).

    The midpoint rule is off by about |ρ′(start)|/24.
    """
    return sum(
        term.weight * _BEYOND[term.shape](start - 0.5, *term.parameters) for term in kernel.terms
    )


def _gamma_tail(x: float, scale: float, power: float) -> float:
    if power * math.log(x / scale) > math.log(_NOTHING):
        return 0.0
    with mpmath.workdps(30):
        inside = (mpmath.mpf(x) / scale) ** power
        return float(scale / mpmath.mpf(power) * mpmath.gammainc(1 / mpmath.mpf(power), inside))


def _normal_tail(x: float, lag: float, width: float) -> float:
    return float(
        width * mpmath.sqrt(mpmath.pi / 2) * mpmath.erfc((x - lag) / (width * mpmath.sqrt(2)))
    )


_BEYOND: dict[str, Any] = {
    "exponential": lambda x, rate: float(np.exp(-rate * (x + 0.5)) / -np.expm1(-rate)),
    "polynomial": lambda x, power: (1 + x) ** (1 - power) / (power - 1),
    "bump": _normal_tail,
    "light": _gamma_tail,
    "heavy": lambda x, power: (1 + np.log1p(x)) ** (1 - power) / (power - 1),
}
