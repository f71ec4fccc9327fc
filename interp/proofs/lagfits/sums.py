"""The best sum found of H exponentials (lin) or powers (log) for a lag or a kernel (`memory` §1.4).

    minimise   Σ_s |target(s) − K(s)|  +  c·u·Σ_h |a_h| Σ_s e^{−p_h φ(s)}
    K(s) = Σ_h a_h e^{−p_h φ(s)},   c = 8 + H

The second part bounds what rounding at the unit roundoff u adds when the model evaluates the sum; a
smaller first part raises it, so the two are minimised together. Slopes lie on a grid of Chebyshev
points, p_h = −γ log(r (1 − cos π(2h + 1)/2H)/2) above the least slope, with (r, γ) searched; for
given slopes the coefficients solve a linear programme in extended precision (`least`), in which far
lags are blocks that count as one. Then both are rounded to the precision, and the error of the
rounded numbers is evaluated lag by lag (`error`).

The search finds good grids, not the best: errors are bounds from above of what H heads can do.
A fit in exact arithmetic says nothing about what gradient descent reaches.
"""

from __future__ import annotations

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

from interp.errors import Problems
from interp.proofs.lagfits.error import kernel_error, lag_error, lags_beyond
from interp.proofs.lagfits.least import BITS, LeastFit, least_absolute
from interp.proofs.lagfits.positions import DIGITS, LEAST_SLOPE, Positions, basis, tail
from interp.tasks.memory.kernels import MemoryKernel

__all__ = ["PRECISIONS", "SumFit", "fit_sum", "floor", "grid", "rounded", "rounding_price"]

PRECISIONS = {"float64": 2.0**-53, "float32": 2.0**-24}
_ROUNDINGS = 8
_NEAR = 40
_FINE, _COARSE = (1.4, 20), (2.5, 7)
"""How lags far back are grouped, (fine, coarse): growth of a block and number of blocks."""
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
    """The rounding error c·u per unit of mass: a term is rounded 8 times, and H terms are added."""
    return (_ROUNDINGS + heads) * unit_roundoff


def fit_sum(
    target: int | str, heads: int, *, positions: Positions = "lin", unit_roundoff: float = 2.0**-53
) -> SumFit:
    """The best sum of ``heads`` terms that the search finds.

    Args:
        target: A lag T ≥ 1, or a kernel as text (:meth:`MemoryKernel.parse`).
        heads: The number of terms H ≥ 1.
        positions: ``lin`` (exponentials) or ``log`` (powers).
        unit_roundoff: Of the arithmetic the model runs in, 2^−53 (float64) or more.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """
    _check("fit_sum", target, heads, positions, unit_roundoff)
    price = rounding_price(heads, unit_roundoff)

    def value(at: NDArray[np.float64]) -> float:
        slopes = rounded(grid(positions, heads, at[0], at[1]), unit_roundoff)
        if len(set(slopes)) < heads:
            return 1e3
        return _solve(target, positions, slopes, price, iterations=15).value

    starts = [np.array([x, _SPREAD[positions]]) for x in (-4.0, -2.0, 0.0, 2.0)]
    start = min(starts, key=value)
    options = {"maxfev": 45, "xatol": 0.02, "fatol": 0.0, "initial_simplex": start + _SIMPLEX}
    best = minimize(value, start, method="Nelder-Mead", options=options).x
    slopes = rounded(grid(positions, heads, best[0], best[1]), unit_roundoff)
    found = _solve(target, positions, slopes, price, iterations=60)
    return _held(target, positions, slopes, found, price, unit_roundoff)


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
    """Chebyshev points of e^{−p/γ}, and a few more towards both of its ends, p falling."""
    z = 0.95 * _chebyshev(_DENSE)
    ends = 0.6 ** np.arange(10, 0, -1)
    z = np.concatenate([z[0] * ends, z, 1 - (1 - z[-1]) * ends[::-1]])
    return _slopes(positions, z, _SPREAD[positions])


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


def grid(positions: Positions, heads: int, scale: float, spread: float) -> NDArray[np.float64]:
    """A grid of slopes, at Chebyshev points of e^{−p/γ} in (0, r); r is a logistic function of
    ``scale``."""
    return _slopes(positions, 0.98 / (1 + np.exp(-scale)) * _chebyshev(heads), spread)


def _chebyshev(count: int) -> NDArray[np.float64]:
    return (1 - np.cos(np.pi * (2 * np.arange(count) + 1) / (2 * count))) / 2


def _slopes(positions: Positions, z: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """p = −γ log z above the least slope, γ = e^spread (1/log 2 makes z = 2^{−p} for log)."""
    return LEAST_SLOPE[positions] * 1.001 - np.exp(spread) * np.log(z)


def rounded(slopes: NDArray[np.float64], unit_roundoff: float) -> list[float]:
    """Round slopes to what a model of that precision holds."""
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
    """Solve for the coefficients, in units of price × mass; the rows of the system are lags, then
    blocks of lags, then the tail."""
    near, edges = _rows(target, far)
    with mpmath.workdps(DIGITS):
        p = [mpmath.mpf(v) for v in slopes]
        scale = [1 / (price * total) for total in tail(positions, p, 0)]
        lines = _lines(positions, p, near, edges)
        rows = [[_units(x * f) for x, f in zip(line, scale, strict=True)] for line in lines]
        wanted = [_units(mpmath.mpf(v)) for v in _wanted(target, near, edges)]
    as_rows, as_target = np.array(rows, dtype=object), np.array(wanted, dtype=object)
    return least_absolute(as_rows, as_target, iterations=iterations)


def _rows(target: int | str, far: tuple[float, int]) -> tuple[int, list[int]]:
    """Lags below the first edge are rows of their own, those between edges one row a block."""
    near = (target if isinstance(target, int) else _NEAR) + _NEAR
    return near, [round(near * far[0] ** k) for k in range(far[1])]


def _lines(positions: Positions, p: Sequence[Any], near: int, edges: list[int]) -> list[list[Any]]:
    beyond = [tail(positions, p, edge) for edge in edges]
    blocks = [[x - y for x, y in zip(one, other, strict=True)] for one, other in pairwise(beyond)]
    return [*(basis(positions, p, s) for s in range(near)), *blocks, beyond[-1]]


def _wanted(target: int | str, near: int, edges: list[int]) -> list[float]:
    """The target's value in every row of the linear programme."""
    if isinstance(target, int):
        return [float(s == target) for s in range(near)] + [0.0] * len(edges)
    kernel = MemoryKernel.parse(target)
    values = kernel.values(np.arange(edges[-1], dtype=np.float64))
    blocks = [float(values[a:b].sum()) for a, b in pairwise(edges)]
    return [*values[:near].tolist(), *blocks, lags_beyond(kernel, edges[-1])]


def _units(value: mpmath.mpf) -> int:
    return int(mpmath.nint(mpmath.ldexp(value, BITS)))


def _held(
    target: int | str,
    positions: Positions,
    slopes: list[float],
    found: LeastFit,
    price: float,
    unit_roundoff: float,
) -> SumFit:
    """The sum with coefficients rounded to the precision, and its error."""
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
