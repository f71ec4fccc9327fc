"""Bootstrap intervals (95 %) over rows, for rows that are all available or arrive in batches.

    row_interval    all rows available: each resample draws as many rows with replacement, and the
                    interval is the middle 95 % of a statistic over the resamples
    RowMeans        rows come in batches and none is kept: each has weight Poisson(1) in every
                    resample, which is drawing with replacement except for the number of rows

Both give the same interval up to the randomness of the resamples. Rows are what is drawn
independently; positions of a row are not. Beside these, :class:`RowMeans` keeps what a null of
exact moments needs:

    mean      = Σ_r value_r / Σ_r weight_r              value_r is a sum of weight_r terms
    null      mean and variance of Σ_r value_r, added up likewise

The counts of rows are drawn in order, so that the result does not depend on how rows are split into
batches. An interval says how much a number would change with other rows of the same kind. It is too
narrow for few rows (ten or less), and says nothing about other models or tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.stats.p_values import Null, Tail, from_moments

RESAMPLES = 1000
_INTERVAL = (0.025, 0.975)


def row_interval(
    terms: Float[np.ndarray, " row *term"],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the bootstrap interval of a function of means over rows.

    Args:
        terms: For each row one number, or several numbers that the statistic needs.
        statistic: A function from the terms' means in each resample, ``[resample, *term]``, to
            ``[resample]``; for one number per row it is their mean by default.
        seed: Seed of the resamples.
        resamples: Number of resamples.

    Returns:
        The ends of the 95 % interval.
    """
    rows, rng = len(terms), np.random.default_rng(seed)
    counts = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    means = np.tensordot(counts / rows, terms, axes=1)
    low, high = interval_of(means if statistic is None else statistic(means))
    return float(low), float(high)


class RowCounts:
    """Draws bootstrap weights: how often each row occurs in each resample (Poisson with mean 1).

    Args:
        seed: Seed of the random draws.
        resamples: Number of bootstrap resamples; 0 if no intervals are wanted.
    """

    def __init__(self, seed: int, resamples: int) -> None:
        self.resamples = resamples
        self._rng = np.random.default_rng(seed)

    def draw(self, rows: int) -> Float[Tensor, "resample row"]:
        """Draw the counts of the next rows."""
        found = self._rng.poisson(1.0, (rows, self.resamples)).astype(np.float64)
        return torch.from_numpy(found).T


@dataclass
class RowMeans:
    """Running means over rows of some scores, with their null's moments and bootstrap resamples.

    Attributes:
        shape: The shape of the scores.
        resamples: Number of bootstrap resamples.
    """

    shape: tuple[int, ...]
    resamples: int
    _weight: Tensor = field(init=False)

    def __post_init__(self) -> None:
        zeros = torch.zeros(3, *self.shape, dtype=torch.float64)
        self._score, self._mean, self._variance = zeros
        self._weight = torch.zeros((), dtype=torch.float64)
        self._draws = torch.zeros(self.resamples, *self.shape, dtype=torch.float64)
        self._draw_weights = torch.zeros(self.resamples, *[1] * len(self.shape)).double()

    def add(
        self,
        score: Float[Tensor, " row *score"],
        weight: Float[Tensor, "row *#score"],
        counts: Float[Tensor, "resample row"],
        mean: Tensor | float = 0.0,
        variance: Tensor | float = 0.0,
    ) -> None:
        """Add some rows.

        Args:
            score: For each row, the sum of its terms.
            weight: For each row, the number of its terms; axes are as long as the scores' or of
                length 1.
            counts: The rows' bootstrap counts, from :meth:`RowCounts.draw`.
            mean: The expectation of ``score`` under the null.
            variance: The variance under the null of the sum of ``score`` over these rows.
        """
        self._score += score.sum(0)
        self._mean += (score * 0 + mean).sum(0)
        self._variance += variance
        self._weight = self._weight + weight.sum(0)
        self._draws += torch.tensordot(counts, score - mean, dims=1)
        self._draw_weights = self._draw_weights + torch.tensordot(counts, weight, dims=1)

    @property
    def size(self) -> int:
        """How many numbers are kept in memory."""
        held = (self._score, self._mean, self._variance, self._weight, self._draws)
        return sum(part.numel() for part in (*held, self._draw_weights))

    def scores(self) -> NDArray[np.float64]:
        """Return each score's mean over the terms of all rows so far, ``[*score]``; NaN without any
        term."""
        return self._over(self._score)

    def draws(self) -> NDArray[np.float64]:
        """Return the means on the resamples, minus the null's mean: ``[resample, *score]``."""
        found: NDArray[np.float64] = (self._draws / self._draw_weights).numpy()
        return found

    def null(self, place: tuple[int, ...], name: str, tail: Tail = "greater") -> Null:
        """Return the null of one score, called ``name``; p is NaN if nothing was counted."""
        score, mean, std = (
            float(self._over(part)[place])
            for part in (self._score, self._mean, self._variance.sqrt())
        )
        if math.isnan(score):
            return Null(math.nan, math.nan, math.nan, name)
        return from_moments(score, mean, std, name=name, tail=tail)

    def intervals(self) -> NDArray[np.float64]:
        """Return the intervals of score − null mean, ``[2, *score]``; NaN without rows or
        resamples."""
        return interval_of(self.draws())

    def _over(self, total: Tensor) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (total / self._weight).numpy()
        return found


def interval_of(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the middle 95 % of resamples ``[resample, *score]``, as ``[2, *score]``; NaN without
    any."""
    if not draws.size:
        return np.full((2, *draws.shape[1:]), np.nan)
    known = ~np.isnan(draws)
    filled = np.where(known.any(0), draws, 0.0)
    found: NDArray[np.float64] = np.nanquantile(filled, _INTERVAL, axis=0)
    return np.where(known.any(0), found, np.nan)
