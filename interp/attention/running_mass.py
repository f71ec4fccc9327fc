"""Average attention over rows and queries, added up batch by batch.

    share_h(i, j) = pattern_h(i, j) / Σ_j pattern_h(i, j)
    mass_h(K)     = mean over rows of the mean over the row's counted queries i that have a key in K
                    of Σ_{j in K} share_h(i, j)

All rows have equal weight, and so do all queries of a row that have such a key. Rows are what is
drawn independently, what the null of tokens exchanges and what the bootstrap resamples. (In a mean
over the queries of all rows together, a row in which a token repeats often would dominate.) If all
rows have equally many such queries, as for lags in rows of one length, the two means are equal.

The kinds of key (:mod:`interp.attention.by_lag`, :mod:`interp.attention.attention_to_keys`) differ
in which keys each class has and in the null. A few numbers are kept for each head, class and
resample. Mass says where a head attends, not that anything is moved from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.stats.bootstrap import RowCounts, RowMeans
from interp.stats.head_table import TEST, head_table, score_row
from interp.store.rows import AttentionMask, Pattern, attention_shares, mask_from_patterns

Kind = tuple[str, tuple[str, ...]]
"""The name of a null, and the names of the key classes whose attention mass is compared with it."""


@dataclass(frozen=True)
class RowScores:
    """The attention mass of some classes of keys in each row of a batch, under one null.

    Attributes:
        score: The mean over the row's queries, ``[row, head, class]``.
        mean: The score's expectation under the null, in the same shape.
        variance: Variance under the null of the sum of ``score`` over rows, ``[head, class]``.
        counted: Whether the row has a query with such a key, ``[row, class]``; scores are 0 if it
            has none.
        kept: The indices of these rows in the batch.
    """

    score: Float[Tensor, "row head class"]
    mean: Float[Tensor, "row head class"]
    variance: Float[Tensor, "head class"]
    counted: Bool[Tensor, "row class"]
    kept: Int[Tensor, " row"]


Measure = Callable[[Pattern, Bool[Tensor, "query key"]], Iterator[tuple[Kind, RowScores]]]
"""A function from attention shares ``[row, head, query, key]`` and the mask of allowed keys to the
scores of each row."""


class RunningMass:
    """The attention mass of every head on some classes of keys, over all rows seen so far.

    Args:
        metric: The metric's name in tables.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples; 0 for no intervals.
        attention_mask: The keys that a query may attend to; None to infer them from the first
            batch's patterns.
    """

    family: ClassVar[Sequence[str]] = TEST
    """The columns in which the rows of one family agree, over which q is computed."""

    def __init__(
        self,
        metric: str,
        seed: int,
        resamples: int,
        attention_mask: AttentionMask | None,
    ) -> None:
        self.metric, self.attention_mask = metric, attention_mask
        self._counts = RowCounts(seed, resamples)
        self._sums: dict[tuple[int, Kind], tuple[tuple[int, ...], RowMeans]] = {}

    def take(
        self,
        patterns: Mapping[int, Pattern],
        rows: int,
        heads: Sequence[int] | None,
        measure: Measure,
    ) -> None:
        """Add one batch of rows.

        Args:
            patterns: Layer → attention ``[row, head, query, key]``, normalised or not.
            rows: How many rows the batch has.
            heads: The numbers of the heads in the patterns; all by default.
            measure: A function from normalised attention and the visible keys to the classes'
                scores.

        Raises:
            ArgumentError: if attention is not finite, or lies on keys that should be masked.
        """
        self.attention_mask = self.attention_mask or mask_from_patterns(patterns.values())
        counts = self._counts.draw(rows)
        for layer, pattern in patterns.items():
            named = tuple(range(pattern.shape[1]) if heads is None else heads)
            seen = self.attention_mask.keys(pattern.shape[-1])
            share = attention_shares(layer, pattern, seen, named)
            for kind, found in measure(share, seen):
                empty = named, RowMeans((len(named), len(kind[1])), self._counts.resamples)
                _, sums = self._sums.setdefault((layer, kind), empty)
                weight = found.counted.double()[:, None]
                sums.add(found.score, weight, counts[:, found.kept], found.mean, found.variance)

    @property
    def size(self) -> int:
        """The number of values that the running sums of all layers hold in memory.

        It depends on the numbers of heads, classes and resamples, not on the number of rows seen.
        """
        return sum(sums.size for _, sums in self._sums.values())

    def mass(self, layer: int, kind: Kind) -> Float[np.ndarray, "head class"]:
        """Return the mean attention mass of a layer's heads on each class of keys, ``[head,
        class]``.

        Args:
            layer: The layer.
            kind: The name of the null and the classes of keys, as the measure gave them.

        Returns:
            Means over all rows so far; NaN for a class that no query has a key of.
        """
        return self._sums[layer, kind][1].scores()

    def table(self) -> pd.DataFrame:
        """Return the results as a head table, with ``low`` and ``high`` bounds of the effect.

        ``target`` is the class, and ``null`` says what is permuted. Numbers are NaN if no query has
        a key of the class.
        """
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
                    component="head",
                    head=named[place[0]],
                )


def query_weights(
    eligible: Bool[Tensor, "row query *class"],
) -> Float[Tensor, "row query *class"]:
    """Return each query's weight in its row's mean: 1/(number of eligible queries), 0 elsewhere."""
    return eligible.double() / eligible.sum(1, keepdim=True).clamp_min(1)
