"""One rule for every p-value: how extreme a score is under its null.

    moments   the null's mean and standard deviation are known exactly (permutations of rows, random
              rotations); p is the tail of a normal distribution with these moments, or of a gamma
              distribution for scores that cannot be negative
    draws     the null was sampled D times; p = (1 + #{draws ≥ score}) / (1 + D) if ten draws or
              more reach the score. If fewer do, the count is imprecise, and p is an exponential
              tail through the tenth largest draw, with the mean excess of the largest tenth

No p is below what its null can support: 1/(10·D) for D draws, a tenth of what a count could reach;
:data:`LEAST_P` for exact moments, whose tail is fitted too; nor below one over the number of
arrangements that a permutation has. With fewer than a hundred draws p is a count, and no tail is
fitted.

An exponential tail is too high for distributions that fall off faster, such as the normal, and
right for those that fall off at that rate. Scores that span orders of magnitude should be given as
logarithms: a power-law tail is then exponential.

A small p says that chance does not explain the score. It does not say that the score is large, nor
that what was measured is a mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import gammaincc, ndtr

LEAST_P = 1e-10
"""Smallest p-value that is reported if the null is given by exact moments. The tail is fitted there
too, so that a smaller p would claim more than is known."""

_FEW, _ENOUGH = 10, 100

_ROUNDING = 1e-12
"""A null whose standard deviation is at most this share of its mean, or of the score, counts as
constant: the spread is floating-point rounding."""

Tail = Literal["greater", "two-sided", "gamma"]
"""Which deviations from the null count: large scores (``greater``), both directions
(``two-sided``), or large scores of a quantity that is never negative (``gamma``)."""


@dataclass(frozen=True)
class Null:
    """The null distribution of one score, and the p-value of the measured score under it.

    Attributes:
        mean, std: Mean and standard deviation of the score under the null.
        p: Probability under the null of a score at least as extreme as the measured one, for a one-
            or two-sided test; NaN if it is undefined.
        name: What the null randomises: ``positions``, ``tokens``, ``rows``, ``paired`` …
        draws: Number of random draws that p is computed from; 0 if mean and standard deviation are
            exact and p is the tail of a distribution with these moments.
    """

    mean: float
    std: float
    p: float
    name: str = ""
    draws: int = 0


def from_moments(
    score: float,
    mean: float,
    std: float,
    *,
    name: str = "",
    tail: Tail = "greater",
    least: float = LEAST_P,
) -> Null:
    """Return the null with known mean and standard deviation, and the p-value of a score under it.

    Args:
        score: The measured score.
        mean, std: Exact mean and standard deviation under the null.
        name: The name of the null.
        tail: Which deviations count: see :data:`Tail`.
        least: The least p that the null can give, if that is more than :data:`LEAST_P`.

    Returns:
        The null; p is NaN if a number is not finite, and 1 if the null has no spread.
    """
    if not np.isfinite([score, mean, std]).all():
        return Null(mean, std, float("nan"), name)
    if not std > _ROUNDING * max(abs(score), abs(mean)):
        return Null(mean, std, 1.0, name)
    if tail == "gamma":
        p = float(gamma_tail(np.array(score), mean, np.array(std)))
    elif tail == "two-sided":
        p = 2 * float(ndtr(-abs(score - mean) / std))
    else:
        p = float(ndtr((mean - score) / std))
    return Null(mean, std, min(max(p, least, LEAST_P), 1.0), name)


def gamma_tail(
    score: NDArray[np.float64], mean: float, std: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the upper tail of gamma distributions with these moments, at least :data:`LEAST_P`;
    NaN if the standard deviation is 0 or within rounding of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = gammaincc((mean / std) ** 2, np.maximum(score, 0.0) * mean / std**2)
    spread = std > _ROUNDING * np.maximum(np.abs(score), abs(mean))
    return np.where(spread, np.maximum(found, LEAST_P), np.nan)


def from_draws(
    score: float, draws: Float[np.ndarray, " draw"], *, name: str = "", two_sided: bool = False
) -> Null:
    """Return the null given by random draws, and the p-value of a score under it.

    Args:
        score: The measured score.
        draws: The same score in each draw under the null.
        name: The name of the null.
        two_sided: Whether small scores count as extreme, too.

    Returns:
        The null; p is NaN if the score or a draw is not finite.
    """
    mean, std = float(draws.mean()), float(draws.std())
    if not (np.isfinite(score) and np.isfinite(draws).all()):
        return Null(mean, std, float("nan"), name, len(draws))
    p = _upper(score, draws)
    if two_sided:
        p = min(2 * min(p, _upper(-score, -draws)), 1.0)
    return Null(mean, std, max(p, 1 / (10 * len(draws))), name, len(draws))


def _upper(score: float, draws: Float[np.ndarray, " draw"]) -> float:
    count, reached = len(draws), int((draws >= score).sum())
    if reached >= _FEW or count < _ENOUGH:
        return (1 + reached) / (1 + count)
    tenth = count // 10
    largest = np.partition(draws, count - tenth - 1)[count - tenth - 1 :]
    excess = float((largest - largest.min()).sum()) / tenth
    if not excess > 0:
        return (1 + reached) / (1 + count)
    threshold = float(np.partition(largest, len(largest) - _FEW)[len(largest) - _FEW])
    return (1 + _FEW) / (1 + count) * float(np.exp((threshold - score) / excess))
