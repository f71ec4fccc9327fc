"""The best sum found of H exponentials (lin) or powers (log) for a lag or a kernel (`memory` §1.4).

    minimise   Σ_s |target(s) − K(s)|  +  c·u·Σ_h |a_h| Σ_s e^{−p_h φ(s)}
    K(s) = Σ_h a_h e^{−p_h φ(s)},   c = 8 + H

The second part bounds what rounding at the unit roundoff u adds when the model evaluates the sum; a
smaller first part raises it, so the two are minimised together. Slopes lie on a grid of Chebyshev
points, p_h = −γ log(r (1 − cos π(2h + 1)/2H)/2) above the least slope, with (r, γ) searched; for
given slopes the coefficients solve a linear programme in extended precision, in which far
lags are blocks that count as one. Then both are rounded to the precision, and the error of the
rounded numbers is evaluated lag by lag.

The search finds good grids, not the best: errors are bounds from above of what H heads can do.
A fit in exact arithmetic says nothing about what gradient descent reaches.

The ℓ1 error, over all lags s ≥ 0, of a sum with given slopes and coefficients.

    lag T:     Σ_s |1[s = T] − K(s)|        K(s) = Σ_h a_h e^{−p_h φ(s)}
    kernel ρ:  Σ_s |ρ(s) − K(s)|

For a lag the sum is exact: with heads in order of falling range, K has at most as many sign
changes beyond s as the partial sums of a_h e^{−p_h φ(s)} have (Laguerre's rule of signs). Lags are
summed one by one until no change is left (the tail is then one closed-form sum) or one (found by
bisection). Where neither happens within 4096 lags, the rest is bounded by Σ_h |a_h| tail_h.

For a kernel nothing bounds the sign changes: 20 000 lags are summed one by one, and the sum beyond
counts as one of one sign. It is an estimate, good to what the beyond hides.

Least absolute deviations with a penalty on coefficients, in extended precision.

    minimise over b   Σ_s |y_s − Σ_h A_sh b_h| + Σ_h |b_h|

by iteratively reweighted least squares: |e| is majorised by (e²/w + w)/2 with w = √(e_0² + η²) at
the last iterate e_0. The weighted residuals u_s = e_s/w_s then have |u_s| ≤ 1 and
|Σ_s u_s A_sh| ≤ 1 when the iteration has settled: they solve the dual problem. So Σ_s u_s y_s,
divided by the largest violation, is a *lower* bound on the minimum, settled or not. The systems
have condition numbers far beyond float64; numbers are integers in units of 2^−256.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log2
from typing import Any

import mpmath
import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.optimize import minimize

from prooflens.errors import Problems
from prooflens.proofs import DIGITS, LEAST_SLOPE, Positions, basis, grid, tail
from prooflens.tasks import MemoryKernel

__all__ = ["PRECISIONS", "SumFit", "fit_sum", "floor"]

_FAR = 4096
_KERNEL_LAGS = 20_000
_NOTHING = 1e4  # e to the minus this is below every float
_ROUNDINGS = 8
"""Number of roundings that affect one term: in the exponent, its exponential, the value, the
product and the running sum."""


def lag_error(
    positions: Positions, slopes: Sequence[float], coefficients: Sequence[float], lag: int
) -> float:
    """Return the error Σ_s |1[s = lag] − K(s)| of a sum with the given slopes and coefficients: the
    exact value or an upper bound."""
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
    """Return an upper bound on the number of sign changes of K beyond ``start``; it differs from
    the true number by an even number."""
    total, signs = mpmath.mpf(0), []
    for c, value in zip(a, basis(positions, p, start), strict=True):
        total += c * value
        if total != 0:
            signs.append(total > 0)
    return sum(one != other for one, other in pairwise(signs))


def _rest(positions: Positions, p: list[Any], a: list[Any], start: int, changes: int) -> Any:
    """Return Σ_{s ≥ start} |K(s)|, for a K that changes its sign there at most once."""
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
    """Return the error Σ_s |ρ(s) − K(s)| of a sum for a kernel ρ. The lags beyond 20 000 are
    treated as a tail of one sign."""
    p, a = np.asarray(slopes, dtype=np.float64), np.asarray(coefficients, dtype=np.float64)
    s = np.arange(_KERNEL_LAGS, dtype=np.float64)
    at = s if positions == "lin" else np.log1p(s)
    near = np.abs(kernel.values(s) - np.exp(-np.outer(at, p)) @ a).sum()
    with mpmath.workdps(DIGITS):
        exact = [mpmath.mpf(float(v)) for v in p]
        held = tail(positions, exact, _KERNEL_LAGS)
        far = mpmath.fdot([mpmath.mpf(float(v)) for v in a], held)
    return float(near + abs(lags_beyond(kernel, _KERNEL_LAGS) - float(far)))


def lags_beyond(kernel: MemoryKernel, start: int) -> float:
    """Return the kernel's tail Σ_{s ≥ start} ρ(s), in closed form or by the midpoint rule on [start
    − ½, ∞).

    The midpoint rule is off by about |ρ′(start)|/24.
    """
    parts = (t.weight * _BEYOND[t.shape](start - 0.5, *t.parameters) for t in kernel.terms)
    return float(sum(parts))


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
        b = _eliminate(gram, weighted.T.dot(target) >> BITS)
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


def _eliminate(gram: Integers, right: Integers) -> Integers:
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


PRECISIONS = {"float64": 2.0**-53, "float32": 2.0**-24}
_NEAR = 40
_FINE, _COARSE = (1.4, 20), (2.5, 7)
"""How lags far back are grouped into blocks, in a fine and a coarse way: the growth factor of a
block, and the number of blocks."""
_DENSE, _BETWEEN = 40, 4
_SPREAD = {"lin": 0.0, "log": 0.37}


@dataclass(frozen=True)
class SumFit:
    """A sum of exponentials or powers with the numbers that the model will hold.

    Attributes:
        target: The lag, or the kernel as text.
        positions: ``lin`` or ``log``.
        slopes: The slopes p_h, rounded to the precision, ``[head]``.
        coefficients: The coefficients a_h, rounded to the precision, ``[head]``.
        fit_error: Σ_s |target(s) − Σ_h a_h e^{−p_h φ(s)}| over all s ≥ 0, of these rounded numbers.
        rounding_error: Bound on what evaluation at the unit roundoff adds, for |x| ≤ 1.
        mass: The sum Σ_h |a_h| Σ_s e^{−p_h φ(s)}, which rounding errors are proportional to.
    """

    target: int | str
    positions: Positions
    slopes: Float64[np.ndarray, " head"]
    coefficients: Float64[np.ndarray, " head"]
    fit_error: float
    rounding_error: float
    mass: float

    @property
    def error(self) -> float:
        """A bound on |Σ_s K(s) x_{t−s} − Σ_s target(s) x_{t−s}| for |x| ≤ 1."""
        return self.fit_error + self.rounding_error


def rounding_price(heads: int, unit_roundoff: float) -> float:
    """Return the rounding error per unit of mass, c·u with c = 8 + H: each term is rounded 8 times,
    and H terms are added."""
    return (_ROUNDINGS + heads) * unit_roundoff


def fit_sum(
    target: int | str, heads: int, *, positions: Positions = "lin", unit_roundoff: float = 2.0**-53
) -> SumFit:
    """Search for the best sum of ``heads`` exponentials or powers for a lag or a kernel.

    Args:
        target: A lag T ≥ 1, or a kernel as text (:meth:`MemoryKernel.parse`).
        heads: The number of terms H ≥ 1.
        positions: ``lin`` (exponentials) or ``log`` (powers).
        unit_roundoff: Unit roundoff of the arithmetic the model runs in, 2^−53 (float64) or more.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """
    _check("fit_sum", target, heads, positions, unit_roundoff)
    price = rounding_price(heads, unit_roundoff)

    def value(at: NDArray[np.float64]) -> float:
        slopes = round_slopes(grid(positions, heads, at[0], at[1]), unit_roundoff)
        if len(set(slopes)) < heads:
            return 1e3
        return _solve(target, positions, slopes, price, iterations=15).value

    starts = [np.array([x, _SPREAD[positions]]) for x in (-4.0, -2.0, 0.0, 2.0)]
    start = min(starts, key=value)
    options = {"maxfev": 45, "xatol": 0.02, "fatol": 0.0, "initial_simplex": start + _SIMPLEX}
    best = minimize(value, start, method="Nelder-Mead", options=options).x
    slopes = round_slopes(grid(positions, heads, best[0], best[1]), unit_roundoff)
    found = _solve(target, positions, slopes, price, iterations=60)
    return _round_fit(target, positions, slopes, found, price, unit_roundoff)


def floor(
    target: int | str, *, positions: Positions = "lin", unit_roundoff: float = 2.0**-53
) -> tuple[float, float]:
    """Bracket the least error that *any* number of heads can reach: (upper value, lower bound).

    Value is the programme's on a dense set of slopes; far lags form seven blocks, each counted as
    one lag, which understates it by up to a tenth. The bound is the dual programme's, divided by
    the largest violation of its constraint at slopes between those: no sum of any number of heads
    does better. Both price a unit of mass as one head would, c = 9, the least any number can.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """
    _check("floor", target, 1, positions, unit_roundoff, least=2.0**-100)
    return _floor(target, positions, unit_roundoff)


@lru_cache(maxsize=256)
def _floor(target: int | str, positions: Positions, unit_roundoff: float) -> tuple[float, float]:
    slopes, price = _dense(positions), rounding_price(1, unit_roundoff)
    found = _solve(target, positions, slopes.tolist(), price, iterations=40, far=_COARSE)
    near, edges = _rows(target, _COARSE)
    shares = np.arange(_BETWEEN) / _BETWEEN
    between = slopes[:-1, None] ** (1 - shares) * slopes[1:, None] ** shares
    with mpmath.workdps(DIGITS):
        fine = [mpmath.mpf(p) for p in between.ravel().tolist()]
        u = [mpmath.mpf(v) for v in found.dual]
        columns = zip(*_lines(positions, fine, near, edges), strict=True)
        masses = tail(positions, fine, 0)
        worst = max(
            abs(mpmath.fdot(u, column)) / (price * mass)
            for column, mass in zip(columns, masses, strict=True)
        )
    return found.value, found.bound / max(1.0, float(worst))


def _dense(positions: Positions) -> NDArray[np.float64]:
    """Return a dense set of slopes p, largest first: Chebyshev points of e^{−p/γ}, with a few more
    near both of its ends."""
    z = 0.95 * (1 - np.cos(np.pi * (2 * np.arange(_DENSE) + 1) / (2 * _DENSE))) / 2
    ends = 0.6 ** np.arange(10, 0, -1)
    z = np.concatenate([z[0] * ends, z, 1 - (1 - z[-1]) * ends[::-1]])
    found: NDArray[np.float64] = LEAST_SLOPE[positions] * 1.001 - np.exp(
        _SPREAD[positions]
    ) * np.log(z)
    return found


_SIMPLEX = np.array([[0.0, 0.0], [0.8, 0.0], [0.0, 0.4]])


def _check(
    subject: str, target: int | str, heads: int, positions: str, u: float, least: float = 2.0**-53
) -> None:
    problems = Problems(subject)
    if isinstance(target, int):
        problems.need(
            target >= 1, "target", "must be a lag of at least 1", target, "0 is x_t itself"
        )
    else:
        MemoryKernel.parse(target)
    problems.need(heads >= 1, "heads", "must be at least 1", heads, "add heads")
    problems.need(
        positions in LEAST_SLOPE, "positions", "must be lin or log", positions, "pick one"
    )
    rule = f"must be from {least:.3g} to below 1/16"
    problems.need(least <= u < 1 / 16, "unit_roundoff", rule, u, "2**-53 is float64")
    problems.raise_if_any()


def round_slopes(slopes: NDArray[np.float64], unit_roundoff: float) -> list[float]:
    """Round slopes to values that a model of the given precision can hold."""
    with mpmath.workprec(round(-log2(unit_roundoff))):
        return [float(+mpmath.mpf(float(p))) for p in slopes]


def _solve(
    target: int | str,
    positions: Positions,
    slopes: Sequence[float],
    price: float,
    iterations: int,
    far: tuple[float, int] = _FINE,
) -> LeastFit:
    """Solve the linear programme for the coefficients, in units of price × mass. The rows of the
    system are single lags, then blocks of lags, then the tail."""
    near, edges = _rows(target, far)
    with mpmath.workdps(DIGITS):
        p = [mpmath.mpf(v) for v in slopes]
        scale = [1 / (price * total) for total in tail(positions, p, 0)]
        lines = _lines(positions, p, near, edges)
        rows = [[_units(x * f) for x, f in zip(line, scale, strict=True)] for line in lines]
        wanted = [_units(mpmath.mpf(v)) for v in _target_values(target, near, edges)]
    as_rows, as_target = np.array(rows, dtype=object), np.array(wanted, dtype=object)
    return least_absolute(as_rows, as_target, iterations=iterations)


def _rows(target: int | str, far: tuple[float, int]) -> tuple[int, list[int]]:
    """Return how the lags form the rows of the linear programme: the number of lags that are rows
    of their own, and the edges of the blocks behind them."""
    near = (target if isinstance(target, int) else _NEAR) + _NEAR
    return near, [round(near * far[0] ** k) for k in range(far[1])]


def _lines(positions: Positions, p: Sequence[Any], near: int, edges: list[int]) -> list[list[Any]]:
    beyond = [tail(positions, p, edge) for edge in edges]
    blocks = [[x - y for x, y in zip(one, other, strict=True)] for one, other in pairwise(beyond)]
    return [*(basis(positions, p, s) for s in range(near)), *blocks, beyond[-1]]


def _target_values(target: int | str, near: int, edges: list[int]) -> list[float]:
    """The target's value in every row of the linear programme."""
    if isinstance(target, int):
        return [float(s == target) for s in range(near)] + [0.0] * len(edges)
    kernel = MemoryKernel.parse(target)
    values = kernel.values(np.arange(edges[-1], dtype=np.float64))
    blocks = [float(values[a:b].sum()) for a, b in pairwise(edges)]
    return [*values[:near].tolist(), *blocks, lags_beyond(kernel, edges[-1])]


def _units(value: mpmath.mpf) -> int:
    return int(mpmath.nint(mpmath.ldexp(value, BITS)))


def _round_fit(
    target: int | str,
    positions: Positions,
    slopes: list[float],
    found: LeastFit,
    price: float,
    unit_roundoff: float,
) -> SumFit:
    """Round the coefficients to the precision, and return the sum with the error of the rounded
    numbers."""
    with mpmath.workdps(DIGITS):
        mass = tail(positions, [mpmath.mpf(p) for p in slopes], 0)
        exact = [
            mpmath.ldexp(mpmath.mpf(int(b)), -BITS) / (price * m)
            for b, m in zip(found.coefficients, mass, strict=True)
        ]
    with mpmath.workprec(round(-log2(unit_roundoff))):
        a = [float(+value) for value in exact]
    total = float(np.abs(a) @ np.array([float(m) for m in mass]))
    if isinstance(target, int):
        error = lag_error(positions, slopes, a, target)
    else:
        error = kernel_error(positions, slopes, a, MemoryKernel.parse(target))
    return SumFit(target, positions, np.array(slopes), np.array(a), error, price * total, total)
