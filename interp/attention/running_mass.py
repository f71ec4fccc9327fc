"""One average of attention over rows and queries, grown batch by batch.

    share_h(i, j) = pattern_h(i, j) / Σ_j pattern_h(i, j)
    mass_h(K)     = mean over rows of the mean over the row's counted queries i that have a key in K
                    of Σ_{j in K} share_h(i, j)

Every row counts alike, and in it every query that has such a key: rows are what is drawn
independently, what the null of tokens exchanges and what the bootstrap draws anew. (A mean over the
queries of all rows together would let a row in which a token repeats often speak for the others.)
Where all rows have equally many such queries, as for lags in rows of one length, it is the same.

What differs between the kinds of key (:mod:`interp.attention.by_lag`,
:mod:`interp.attention.attention_to_keys`) is which keys each class has and what stands for chance.
What is held is a few numbers for each head, class and resample. Mass says where a head looks, not
that anything is moved from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.combinations import Combinations, Named, name_columns, with_combinations
from interp.stats.bootstrap import RowCounts, RowMeans
from interp.stats.head_table import TEST, head_table, score_row
from interp.store.attention_mask import AttentionMask, Pattern, attention_shares, mask_from_patterns

__all__ = ["Kind", "Measure", "RowScores", "RunningMass", "query_weights"]

Kind = tuple[str, tuple[str, ...]]
"""What chance is, and the names of classes of keys."""


@dataclass(frozen=True)
class RowScores:
    """Some classes' mass in each row of a batch, under one null.

    Attributes:
        score: ``[row, head, class]``, the mean over the row's queries.
        mean: Its expectation under the null, likewise.
        variance: Of the sum of ``score`` over rows, ``[head, class]``.
        counted: ``[row, class]``, whether the row has a query with such a key; the others' scores
            are 0.
        kept: Which rows of the batch these are.
    """

    score: Float[Tensor, "row head class"]
    mean: Float[Tensor, "row head class"]
    variance: Float[Tensor, "head class"]
    counted: Bool[Tensor, "row class"]
    kept: Int[Tensor, "row"]


Measure = Callable[[Pattern, Bool[Tensor, "query key"]], Iterator[tuple[Kind, RowScores]]]
"""From shares ``[row, head, query, key]`` and the keys a query may attend to, to scores."""


class RunningMass:
    """Mass of every head in some classes of keys, over all rows seen so far.

    Args:
        metric: Its name in tables.
        seed: Of the bootstrap's counts.
        resamples: Of the bootstrap; 0 for no intervals.
        attention_mask: Which keys a query may attend to; None to see it from the first batch's
            patterns.
        combinations: Signed combinations of a layer's heads, measured beside them.
    """

    family: ClassVar[Sequence[str]] = TEST
    """Over which rows of the table q is taken."""

    def __init__(
        self,
        metric: str,
        seed: int,
        resamples: int,
        attention_mask: AttentionMask | None,
        combinations: Combinations | None,
    ) -> None:
        self.metric, self.attention_mask, self.combinations = metric, attention_mask, combinations
        self._counts = RowCounts(seed, resamples)
        self._sums: dict[tuple[int, Kind], tuple[Named, RowMeans]] = {}

    def take(
        self,
        patterns: Mapping[int, Pattern],
        rows: int,
        heads: Sequence[int] | None,
        measure: Measure,
    ) -> None:
        """Add one batch.

        Args:
            patterns: Layer → attention, normalised or not.
            rows: How many the batch has.
            heads: Which heads the patterns hold; all by default.
            measure: The classes' scores.

        Raises:
            ArgumentError: if attention is not finite, or lies on keys that should be masked.
        """
        self.attention_mask = self.attention_mask or mask_from_patterns(patterns.values())
        counts = self._counts.draw(rows)
        for layer, pattern in patterns.items():
            numbers = range(pattern.shape[1]) if heads is None else heads
            named, whole = with_combinations(layer, pattern, numbers, self.combinations)
            seen = self.attention_mask.keys(pattern.shape[-1])
            share = attention_shares(layer, whole, seen, named)
            for kind, found in measure(share, seen):
                empty = named, RowMeans((len(named), len(kind[1])), self._counts.resamples)
                _, sums = self._sums.setdefault((layer, kind), empty)
                weight = found.counted.double()[:, None]
                sums.add(found.score, weight, counts[:, found.kept], found.mean, found.variance)

    @property
    def size(self) -> int:
        """How many numbers the sums take in memory; it does not grow with rows."""
        return sum(sums.size for _, sums in self._sums.values())

    def mass(self, layer: int, kind: Kind) -> Float[np.ndarray, "head class"]:
        """A layer's means; NaN for classes that no query has."""
        return self._sums[layer, kind][1].scores()

    def table(self) -> pd.DataFrame:
        """A head table: target = the class, null = what is permuted, component ``group`` for
        combinations; ``low`` and ``high`` bound the effect. NaN where no counted query has a key
        of the class."""
        return head_table(self._lines(), family=self.family)

    def _lines(self) -> Iterator[dict[str, Any]]:
        for (layer, (null, classes)), (named, sums) in self._sums.items():
            scores, (low, high) = sums.scores(), sums.intervals()
            for place in np.ndindex(*scores.shape):
                yield score_row(
                    self.metric,
                    float(scores[place]),
                    sums.null(place, null),
                    layer=layer,
                    target=classes[place[1]],
                    interval=(float(low[place]), float(high[place])),
                    **name_columns(named[place[0]]),
                )


def query_weights(
    eligible: Bool[Tensor, "row query *class"],
) -> Float[Tensor, "row query *class"]:
    """1/(number of the row's eligible queries) on each of them, 0 elsewhere."""
    return eligible.double() / eligible.sum(1, keepdim=True).clamp_min(1)
