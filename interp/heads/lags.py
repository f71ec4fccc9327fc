"""How much of a head's attention goes to each lag, batch by batch.

    mass_h(s) = mean over scored queries i that may attend to i − s of
                pattern_h(i, i − s) / Σ_j pattern_h(i, j)

Queries of all rows count alike. The null permutes each query's attention over the n keys that it
may attend to: mean 1/n, variance Σp²/n − 1/n², both exact; queries are independent under it, so
their sum's are sums, and p is the normal tail. Intervals are over rows
(:mod:`interp.heads.running`). Lags below 0 are keys after the query.

From a live model or a store; what is held is a number for each head, lag and resample, however many
rows are read. A head that attends to a lag need not move anything from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import Problems
from interp.heads.combinations import Combinations, Named, name_columns, with_combinations
from interp.heads.reading import layer_hooks, read_batches
from interp.heads.running import RESAMPLES, RowCounts, RowMeans
from interp.heads.table import head_table, score_row
from interp.heads.visible import Pattern, Visible, shares, told_by_patterns

__all__ = ["LAGS", "LagMass", "lag_table"]

LAGS = 32
"""Lags 0 … LAGS − 1 are measured, unless told otherwise."""


class LagMass:
    """Attention by lag that grows batch by batch.

    Args:
        lags: Which.
        seed: Of the bootstrap's counts.
        resamples: Of the bootstrap; 0 for no intervals.
        visible: Which keys a query may attend to; None to be told by the first batch's patterns.
        combinations: Signed combinations of a layer's heads, measured beside them.
    """

    def __init__(
        self,
        lags: Sequence[int] = range(LAGS),
        seed: int = 0,
        resamples: int = RESAMPLES,
        visible: Visible | None = None,
        combinations: Combinations | None = None,
    ) -> None:
        self.lags, self.visible, self.combinations = tuple(lags), visible, combinations
        self._counts = RowCounts(seed, resamples)
        self._sums: dict[int, tuple[Named, RowMeans]] = {}

    def add(
        self,
        patterns: Mapping[int, Pattern],
        mask: Bool[Tensor, "row query"],
        heads: Sequence[int] | None = None,
    ) -> None:
        """Take in one batch.

        Args:
            patterns: Layer → attention, normalised or not.
            mask: Queries that count.
            heads: Which heads the patterns hold; all by default.

        Raises:
            ArgumentError: if attention is not finite, or lies on keys that should be masked.
        """
        self.visible = self.visible or told_by_patterns(patterns.values())
        counts = self._counts.draw(len(mask))
        for layer, pattern in patterns.items():
            numbers = range(pattern.shape[1]) if heads is None else heads
            named, whole = with_combinations(layer, pattern, numbers, self.combinations)
            seen = self.visible.keys(pattern.shape[-1])
            share = shares(layer, whole, seen, named)
            empty = RowMeans((len(named), len(self.lags)), self._counts.resamples)
            _, sums = self._sums.setdefault(layer, (named, empty))
            _add(sums, share, mask, seen, self.lags, counts)

    @property
    def size(self) -> int:
        """How many numbers are held."""
        return sum(sums.size for _, sums in self._sums.values())

    def mass(self, layer: int) -> Float[np.ndarray, "head lag"]:
        """Mean shares of a layer; NaN for lags that no query has."""
        return self._sums[layer][1].scores()

    def table(self) -> pd.DataFrame:
        """A head table: metric ``lag_mass``, target ``lag S``, circuit ``positions``; ``low`` and
        ``high`` bound the effect. Component ``group`` for combinations. NaN where no scored query
        has the lag."""
        lines = (self._lines(layer, *kept) for layer, kept in self._sums.items())
        return head_table(chain.from_iterable(lines))

    def _lines(self, layer: int, heads: Named, sums: RowMeans) -> Iterator[dict[str, Any]]:
        scores, (low, high) = sums.scores(), sums.intervals()
        for place in np.ndindex(*scores.shape):
            head, lag = place
            yield score_row(
                "lag_mass", float(scores[place]), sums.null(place),
                layer=layer, circuit="positions", target=f"lag {self.lags[lag]}",
                interval=(float(low[place]), float(high[place])), **name_columns(heads[head]),
            )  # fmt: skip


def lag_table(
    source: Any,
    inputs: Any = None,
    *,
    layers: Sequence[int] | None = None,
    lags: Sequence[int] | None = None,
    combinations: Combinations | None = None,
    batch: int = 8,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Attention by lag of every head of a model, or of a store's patterns.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore` with
            ``hook_pattern`` stored.
        inputs: For a model: tokens ``[row, pos]``, real inputs, or a
            :class:`~interp.tasks.base.Batch` (its mask is used). None for a store.
        layers: Which; all (that are stored) by default.
        lags: Which, negative ones for keys after the query. By default those from 0 to 31 that
            some query has, and where attention looks both ways those from −31 too.
        combinations: Layer → name → a signed coefficient for each of its heads: what they attend
            to together (:mod:`interp.heads.combinations`).
        batch: Rows at a time; with the sequence length it decides the memory used.
        seed, resamples: Of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``; see :meth:`LagMass.table`.

    Raises:
        ArgumentError: for arguments that do not fit, or attention that is not finite.
        HookError: for patterns that are not stored.
    """
    problems = Problems("lag_table")
    rule, advice = "must be different whole numbers", "give lags, or None for the first 32"
    whole = lags is None or (len(set(lags)) == len(lags) > 0 and all(int(s) == s for s in lags))
    problems.need(whole, "lags", rule, lags, advice)
    problems.raise_if_any()
    hooks = layer_hooks(source, "attn.hook_pattern", layers)
    found: LagMass | None = None
    for rows in read_batches(source, inputs, hooks, batch=batch):
        patterns = {int(hook.split(".")[1]): v for hook, v in rows.activations.items()}
        if found is None:
            seen = rows.visible or told_by_patterns(patterns.values())
            first = 0 if seen.causal else 1 - LAGS
            wanted = range(first, LAGS) if lags is None else lags
            found = LagMass(wanted, seed, resamples, seen, combinations)
        found.add(patterns, rows.mask, rows.heads)
    problems.need(found is not None, "inputs", "must hold rows", 0, "give some")
    problems.raise_if_any()
    table = head_table([]) if found is None else found.table()
    return table if lags is not None else table[table["score"].notna()].reset_index(drop=True)


def _add(
    sums: RowMeans,
    share: Float[Tensor, "row head query key"],
    mask: Bool[Tensor, "row query"],
    seen: Bool[Tensor, "query key"],
    lags: Sequence[int],
    counts: Float[Tensor, "resample row"],
) -> None:
    keys = torch.arange(len(seen))[:, None] - torch.tensor(lags)
    at = keys.clamp(0, len(seen) - 1)
    there = (keys == at) & seen.gather(1, at)  # [query, lag]
    terms = (mask[..., None] & there).double()
    n, whole = seen.sum(-1).double().clamp_min(1), share.sum(-1)
    by_lag = share.gather(-1, at.expand(*share.shape[:3], -1))
    score = torch.einsum("rhql,rql->rhl", by_lag, terms)
    mean = torch.einsum("rhq,rql->rhl", whole / n, terms)
    spread = (share.square().sum(-1) / n - (whole / n) ** 2).clamp_min(0)
    variance = torch.einsum("rhq,rql->hl", spread, terms)
    sums.add(score, terms.sum(1)[:, None], counts, mean, variance)
