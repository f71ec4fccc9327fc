"""Choose the exponentials that select a lag with the least total of fit error and rounding.

A closer fit needs larger coefficients. :func:`~interp.proofs.lagfits.fit_lag` trades one for the
other at a price for rounding; models differ in that price (shifted kernels and dense weights round
more), so fits for several prices are made and the one with the least total is taken.
"""

from __future__ import annotations

from functools import lru_cache

from interp.proofs.lagfits import LagFit, fit_lag
from interp.proofs.memory.rounding import Evaluation, sum_rounding

__all__ = ["select_lag", "slot_error"]

_PRICES = tuple(4.0**k for k in range(9))


def select_lag(lag: int, how: Evaluation) -> LagFit:
    """The fit of a lag that has the least error in a model that evaluates sums as ``how`` says."""
    return min(_fits(lag, how.unit), key=lambda fit: slot_error(fit, how))


def slot_error(fit: LagFit, how: Evaluation) -> float:
    """A bound on |Σ_h a_h Σ_j e^{−p_h j} x_j − x_T| for |x| ≤ 1, of fit and rounding together."""
    return fit.fit_error + sum_rounding(fit.slopes, fit.coefficients, how)


@lru_cache(maxsize=64)
def _fits(lag: int, unit: float) -> tuple[LagFit, ...]:
    return tuple(fit_lag(lag, unit_roundoff=unit * price) for price in _PRICES)
