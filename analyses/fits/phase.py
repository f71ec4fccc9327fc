"""The phase diagram of selecting a lag: heads and bits that an error ε costs (`memory` §1.4).

    heads   the smallest H for which a sum was found with certified error ≤ ε at a precision
    bits    the significant bits below which *no* number of heads reaches ε, and at which some do

Heads are bounds from above (grids of slopes are searched, not all slopes). Bits are bracketed: the
lower end by the dual programme, the upper by a sum of up to 40 terms. ε is the certificate's, fit
and worst-case rounding together for |x| ≤ 1: random inputs round more kindly. Neither says what
gradient descent finds: it stops far above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

import pandas as pd

from analyses.fits.sums import PRECISIONS, fit_sum, floor
from prooflens.errors import Problems
from prooflens.proofs import Positions

__all__ = ["bits_needed", "heads_needed", "phase_table"]

MOST_BITS = 96


def heads_needed(
    lag: int, epsilon: float, *, positions: Positions, unit_roundoff: float, most: int = 20
) -> tuple[int | None, float]:
    """Search by bisection for the smallest number of heads with which a sum of error at most ε is
    found.

    Returns:
        The number of heads, and the error of the sum. The number is None in two cases. If the least
        error of any number of heads is above ε, the error is the lower bound on it. If no number up
        to ``most`` reached ε, it is the smallest error that was found.
    """
    _check("heads_needed", epsilon)
    bound = floor(lag, positions=positions, unit_roundoff=unit_roundoff)[1]
    if bound > epsilon:
        return None, bound
    errors: dict[int, float] = {}

    def enough(heads: int) -> bool:
        fit = fit_sum(lag, heads, positions=positions, unit_roundoff=unit_roundoff)
        errors[heads] = fit.error
        return fit.error <= epsilon

    few, many = 0, min(lag + 1, most)
    while not enough(many):
        if many == most:
            return None, min(errors.values())
        few, many = many, min(2 * many, most)
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many, errors[many]


def bits_needed(lag: int, epsilon: float, *, positions: Positions) -> tuple[int, int | None]:
    """Bracket the precision that an error ε needs.

    Returns:
        The number of bits with which no number of heads reaches ε, and the number with which some
        does, or None if 96 bits are not enough.
    """
    _check("bits_needed", epsilon)
    few, many = 5, 16
    while floor(lag, positions=positions, unit_roundoff=2.0**-many)[0] > epsilon:
        if many == MOST_BITS:
            return _last(lag, epsilon, positions, few, many, end=1), None
        many = min(2 * many, MOST_BITS)
    impossible = _last(lag, epsilon, positions, few, many, end=1)
    return impossible, _last(lag, epsilon, positions, impossible, many, end=0) + 1


def _last(lag: int, epsilon: float, positions: Positions, low: int, high: int, end: int) -> int:
    """Return the largest number of bits at which one end of the floor's bracket exceeds ε: the
    value (``end`` 0) or the lower bound (1)."""
    while high - low > 1:
        middle = (low + high) // 2
        above = floor(lag, positions=positions, unit_roundoff=2.0**-middle)[end] > epsilon
        low, high = (middle, high) if above else (low, middle)
    return low


def phase_table(
    lags: Sequence[int],
    *,
    epsilon: float = 0.1,
    positions: Sequence[Positions] = ("lin", "log"),
    precisions: Sequence[str] = ("float64", "float32"),
    most: int = 20,
    done: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """A table with one row per position function, lag and precision.

    Columns: ``positions``, ``lag``, ``precision``, ``heads`` (missing when none was found),
    ``error`` (of those heads; without, the floor's bound or the least error found), ``status``
    (``found``, ``impossible`` or ``not found``), ``impossible_bits`` and ``possible_bits``
    (:func:`bits_needed`, the same for all precisions of a lag).

    Args:
        lags: The lags T, each at least 1.
        epsilon: The largest error ε that is allowed.
        positions: The position functions φ, ``lin`` or ``log``.
        precisions: Names in :data:`PRECISIONS`.
        most: The largest number of heads that is tried.
        done: Called after every row, such as to advance a progress bar.

    Raises:
        ArgumentError: for unknown precisions or an error outside (0, 1).
    """
    _check("phase_table", epsilon, precisions)
    rows = []
    for kind in positions:
        for lag in lags:
            impossible, possible = bits_needed(lag, epsilon, positions=kind)
            for name in precisions:
                u = PRECISIONS[name]
                heads, error = heads_needed(
                    lag, epsilon, positions=kind, unit_roundoff=u, most=most
                )
                status = _status(heads, round(-log2(u)) <= impossible)
                rows.append((kind, lag, name, heads, error, status, impossible, possible))
                if done is not None:
                    done()
    columns = [
        "positions",
        "lag",
        "precision",
        "heads",
        "error",
        "status",
        "impossible_bits",
        "possible_bits",
    ]
    whole = {"heads": "Int64", "possible_bits": "Int64"}
    return pd.DataFrame(rows, columns=columns).astype(whole)


def _status(heads: int | None, impossible: bool) -> str:
    if heads is not None:
        return "found"
    return "impossible" if impossible else "not found"


def _check(subject: str, epsilon: float, precisions: Sequence[str] = ()) -> None:
    problems = Problems(subject)
    problems.need(0 < epsilon < 1, "epsilon", "must be between 0 and 1", epsilon, "0.1 is usual")
    rule = f"must be among {', '.join(PRECISIONS)}"
    for name in precisions:
        problems.need(name in PRECISIONS, "precisions", rule, name, "name one of them")
    problems.raise_if_any()
