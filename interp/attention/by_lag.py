"""Measure how much of a head's attention goes to each lag.

    mass_h(s) = mean over rows of the mean over scored queries i that may attend to i − s of
                pattern_h(i, i − s) / Σ_j pattern_h(i, j)

The average is that of every class of keys (:mod:`interp.attention.running_mass`); a lag is a class
with one key per query, so all lags are measured at once. The null permutes each query's attention
over the n keys that it may attend to: mean 1/n, variance Σp²/n − 1/n², both exact. Queries are
independent under it, so variances add up, and p is the normal tail. Intervals are over rows
(:mod:`interp.stats.bootstrap`). Lags below 0 are keys after the query.

It works on a live model or a store, and keeps one number for each head, lag and resample, however
many rows are read. A head that attends to a lag need not move anything from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention.running_mass import Kind, RowScores, RunningMass, query_weights
from interp.errors import Problems, refuse_unless
from interp.hooks.site import Site
from interp.stats.bootstrap import RESAMPLES
from interp.stats.head_table import ANY_TARGET, head_table
from interp.store.rows import AttentionMask, Pattern, layer_hooks, mask_from_patterns, read_batches

LAGS = 32
"""Number of lags that are measured by default. In a causal model these are the lags 0 … LAGS − 1;
where later keys are visible too, also the negative ones down to 1 − LAGS."""


class LagMass(RunningMass):
    """Attention by lag, added up batch by batch.

    Args:
        lags: The lags to measure.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples; 0 for no intervals.
        attention_mask: The keys that a query may attend to; None to infer them from the first
            batch's patterns.
    """

    family = ANY_TARGET

    def __init__(
        self,
        lags: Sequence[int] = range(LAGS),
        seed: int = 0,
        resamples: int = RESAMPLES,
        attention_mask: AttentionMask | None = None,
    ) -> None:
        super().__init__("lag_mass", seed, resamples, attention_mask)
        self.lags = tuple(lags)
        self._kind = "positions", tuple(f"lag {lag}" for lag in self.lags)

    def add(
        self,
        patterns: Mapping[int, Pattern],
        mask: Bool[Tensor, "row query"],
        heads: Sequence[int] | None = None,
    ) -> None:
        """Add one batch of rows.

        Args:
            patterns: Layer → attention ``[row, head, query, key]``, normalised or not.
            mask: Which queries are scored, ``[row, query]``.
            heads: The numbers of the heads in the patterns; all by default.

        Raises:
            ArgumentError: if attention is not finite, or lies on keys that should be masked.
        """

        def measure(
            share: Pattern, seen: Bool[Tensor, "query key"]
        ) -> Iterator[tuple[Kind, RowScores]]:
            yield self._kind, _at_lags(share, mask, seen, self.lags)

        self.take(patterns, len(mask), heads, measure)

    def by_lag(self, layer: int) -> Float[np.ndarray, "head lag"]:
        """Return the mean share of attention of a layer's heads at each lag; NaN for a lag that no
        query has."""
        return self.mass(layer, self._kind)


def lag_table(
    source: Any,
    inputs: Any = None,
    *,
    layers: Sequence[int] | None = None,
    lags: Sequence[int] | None = None,
    batch: int = 8,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Measure the attention by lag of every head of a model, or of a store's patterns.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore` with ``hook_pattern``
            stored.
        inputs: For a model: tokens ``[row, pos]``, real inputs, or a
            :class:`~interp.tasks.base.Batch` (its mask is used). None for a store.
        layers: The layers to measure; all (that are stored) by default.
        lags: The lags to measure; negative ones are keys after the query. By default those from 0
            to 31 that some query has, and from −31 on if attention is bidirectional.
        batch: How many rows are run at a time; with the row length it determines the memory used.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: metric ``lag_mass``, targets ``lag S``
        (:meth:`interp.attention.running_mass.RunningMass.table`).

    Raises:
        ArgumentError: if arguments do not fit, or attention is not finite.
        HookError: if patterns are not stored.
    """
    problems = Problems("lag_table")
    listed = lags is None or isinstance(lags, Iterable)
    refuse_unless(listed, "lags", "must be several", lags, f"range({lags}) for the first ones")
    rule, advice = "must be different whole numbers", "give lags, or None for the first 32"
    whole = lags is None or (len(set(lags)) == len(lags) > 0 and all(int(s) == s for s in lags))
    problems.need(whole, "lags", rule, lags, advice)
    problems.raise_if_any()
    hooks = layer_hooks(source, "attn.hook_pattern", layers)
    found: LagMass | None = None
    for rows in read_batches(source, inputs, hooks, batch=batch):
        patterns = {Site.of(hook).layer: v for hook, v in rows.activations.items()}
        if found is None:
            seen = rows.attention_mask or mask_from_patterns(patterns.values())
            first = 0 if seen.causal else 1 - LAGS
            wanted = range(first, LAGS) if lags is None else lags
            found = LagMass(wanted, seed, resamples, seen)
        found.add(patterns, rows.mask, rows.heads)
    problems.need(found is not None, "inputs", "must hold rows", 0, "give some")
    problems.raise_if_any()
    table = head_table([]) if found is None else found.table()
    return table if lags is not None else table[table["score"].notna()].reset_index(drop=True)


def _at_lags(
    share: Pattern,
    mask: Bool[Tensor, "row query"],
    seen: Bool[Tensor, "query key"],
    lags: Sequence[int],
) -> RowScores:
    keys = torch.arange(len(seen))[:, None] - torch.tensor(lags)
    at = keys.clamp(0, len(seen) - 1)
    there = (keys == at) & seen.gather(1, at)  # [query, lag]
    eligible = mask[..., None] & there
    weights = query_weights(eligible)
    n, whole = seen.sum(-1).double().clamp_min(1), share.sum(-1)
    by_lag = share.gather(-1, at.expand(*share.shape[:3], -1))
    spread = (share.square().sum(-1) / n - (whole / n) ** 2).clamp_min(0)
    return RowScores(
        score=torch.einsum("rhql,rql->rhl", by_lag, weights),
        mean=torch.einsum("rhq,rql->rhl", whole / n, weights),
        variance=torch.einsum("rhq,rql->hl", spread, weights.square()),
        counted=eligible.any(1),
        kept=torch.arange(len(share)),
    )
