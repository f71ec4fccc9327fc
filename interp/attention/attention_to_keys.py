"""Measure how much of a head's attention goes to a class of keys: by position, by content, or by a
latent.

A *class* of keys says for every query which keys belong to it, ``[row, query, key]``:

    previous     j = i − 1                    same         earlier token equal to the query's
    own          j = i                        after_same   right after such a token (induction)
    first        j = 0 (BOS, sink), i ≥ 1     NAME         j = i − t_i for a latent's lags t_i
    local        i − j < window

If attention is bidirectional, ``same`` and ``after_same`` have keys after the query too, latents
may be negative lags, and ``local`` is |i − j| < window.

    mass_h(class) = mean over rows of the mean over the row's queries that have such a key of
                    Σ_{j in class} pattern_h(i, j) / Σ_j pattern_h(i, j)
    uniform_h     = the same mean of Σ_j min(share_h(i, j), 1/n_i) over the n_i keys that the query
                    may attend to, 1 minus the total variation from even attention

Two nulls, both with exact mean and variance, so that nothing is sampled; sums over many queries and
rows are close to normal, and p is that tail:

    positions   each query's weights are permuted over the keys that it may attend to (causal or
                not, its own or not: :mod:`interp.store.rows`): mean c/n and variance
                c (n−c)/(n−1) · (Σp²/n − 1/n²) for c of n keys. For ``uniform``: weights drawn
                uniformly from the simplex, mean 1 − (1 − 1/n)^n.
    tokens      the row is paired with another row's content: rows of a batch are permuted, with
                the moments of Hoeffding's combinatorial statistic. Only for classes that depend on
                content.

A head that attends by position alone can look like induction on rows that repeat with one period;
against ``tokens`` it has no excess. That null in turn needs rows whose periods differ
(:func:`repeated_tokens`): if all rows repeat with one period it finds nothing in any head.

Intervals are a 95 % bootstrap over rows, computed without keeping rows
(:mod:`interp.stats.bootstrap`): memory does not grow with rows. Attention mass does not show that
anything is moved, or used (see :mod:`interp.interventions.components`). Attention that is not a
number is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.key_sets import lag_key_set, positional_key_sets, token_key_sets
from interp.attention.running_mass import Kind, RowScores, RunningMass, query_weights
from interp.errors import need
from interp.hooks.site import Site
from interp.stats.bootstrap import RESAMPLES
from interp.stats.head_table import head_table
from interp.stats.nulls import others_moments
from interp.store.rows import (
    AttentionMask,
    Pattern,
    Rows,
    layer_hooks,
    mask_from_patterns,
    read_batches,
)

__all__ = ["RESAMPLES", "AttentionMass", "attention_mass", "attention_table", "masses_by_row"]

Keys = Bool[Tensor, "row query key"]


class AttentionMass(RunningMass):
    """Attention by class of key, added up batch by batch; :meth:`table` gives the result so far.

    Args:
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples; 0 for no intervals.
        attention_mask: The keys that a query may attend to; None to infer them from the first
            batch's patterns.
    """

    def __init__(
        self,
        seed: int = 0,
        resamples: int = RESAMPLES,
        attention_mask: AttentionMask | None = None,
    ) -> None:
        super().__init__("attention_mass", seed, resamples, attention_mask)

    def add(
        self,
        patterns: Mapping[int, Pattern],
        positions: Mapping[str, Keys],
        contents: Mapping[str, Keys],
        mask: Bool[Tensor, "row query"],
        heads: Sequence[int] | None = None,
    ) -> None:
        """Add one batch of rows.

        Args:
            patterns: Layer → attention ``[row, head, query, key]``, normalised or not.
            positions: The classes of keys that depend on positions alone, by name.
            contents: The classes of keys that depend on what a row contains, by name.
            mask: Which queries are scored, ``[row, query]``.
            heads: The numbers of the heads in the patterns; all by default.

        Raises:
            ArgumentError: if attention is not finite, or lies on keys that should be masked.
        """

        def measure(
            share: Pattern, seen: Bool[Tensor, "query key"]
        ) -> Iterator[tuple[Kind, RowScores]]:
            for (name, null), found in _measure(share, positions, contents, mask, seen):
                yield (null, (name,)), found

        self.take(patterns, len(mask), heads, measure)


def attention_mass(
    batches: Iterable[Rows],
    *,
    window: int = 4,
    lags: Sequence[str] = (),
    key_sets: Callable[[Rows], Mapping[str, Keys]] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Measure the attention mass of every head by class, from batches of patterns.

    Args:
        batches: Rows with patterns, from :func:`interp.store.rows.read_batches`.
        window: The number of keys that count as local: the query's own and the ``window − 1``
            before.
        lags: Names of latents whose values are lags t_i ≥ 0: the class ``NAME`` is the key i − t_i.
        key_sets: A function from a batch to more classes by name: ``[row, query, key]``, true on
            the keys that belong to the class.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table as from :func:`attention_table`.

    Raises:
        ArgumentError: if there are no rows, a latent is missing, or attention is not finite.
    """
    found: AttentionMass | None = None
    for rows in batches:
        patterns = {Site.of(hook).layer: v for hook, v in rows.activations.items()}
        if found is None:
            seen = rows.attention_mask or mask_from_patterns(patterns.values())
            found, causal = AttentionMass(seed, resamples, seen), seen.causal
        contents = token_key_sets(rows.inputs, causal=causal) if rows.inputs.ndim == 2 else {}
        contents |= {name: lag_key_set(rows.latent(name), causal=causal) for name in lags}
        contents |= dict(key_sets(rows)) if key_sets is not None else {}
        n = next(iter(patterns.values())).shape[-1]
        positions = positional_key_sets(len(rows), n, window, causal=causal)
        found.add(patterns, positions, contents, rows.mask, rows.heads)
    need("attention_mass", found is not None, "batches", "must hold rows", 0, "give some")
    return head_table([]) if found is None else found.table()


def attention_table(
    source: Any,
    inputs: Any = None,
    *,
    layers: Sequence[int] | None = None,
    batch: int = 8,
    **options: Any,
) -> pd.DataFrame:
    """Measure the attention mass by class of every head of a model, or of a store's patterns.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore` with ``hook_pattern``
            stored.
        inputs: For a model: tokens ``[row, pos]``, real inputs, or a
            :class:`~interp.tasks.base.Batch` (its mask and latents are used). None for a store.
        layers: The layers to measure; all (that are stored) by default.
        batch: How many rows are run at a time; with the row length it determines the memory used.
        options: Options of :func:`attention_mass`.

    Returns:
        A head table with ``low`` and ``high``; see
        :meth:`interp.attention.running_mass.RunningMass.table`; metric ``attention_mass``.

    Raises:
        ArgumentError: if arguments do not fit.
        HookError: if patterns are not stored.
    """
    rule, advice = "must be at least 2", "the null exchanges the rows of a batch"
    need("attention_table", batch >= 2, "batch", rule, batch, advice)
    hooks = layer_hooks(source, "attn.hook_pattern", layers)
    return attention_mass(read_batches(source, inputs, hooks, batch=batch), **options)


def _measure(
    share: Pattern,
    positions: Mapping[str, Keys],
    contents: Mapping[str, Keys],
    mask: Bool[Tensor, "row query"],
    seen: Bool[Tensor, "query key"],
) -> Iterator[tuple[tuple[str, str], RowScores]]:
    """Yield each (null, classes) with the scores of each row."""
    n = seen.sum(-1).double()
    mask, n = mask & (n > 0), n.clamp_min(1)
    yield ("uniform", "positions"), _uniform(share, mask, n)
    for name, keys in {**positions, **contents}.items():
        weights = _weights(keys, mask, seen)
        yield (name, "positions"), _against_positions(share, weights, n)
        if name in contents:
            yield (name, "tokens"), _against_tokens(share, weights)


def masses_by_row(
    share: Pattern,
    keys: Keys,
    mask: Bool[Tensor, "row query"],
    seen: Bool[Tensor, "query key"],
) -> Float[Tensor, "row head"]:
    """Return the attention mass of one class in each row; its mean over rows is
    :func:`attention_table`'s.

    Args:
        share: Attention patterns whose queries each sum to one, ``[row, head, query, key]``.
        keys: The keys that belong to the class, ``[row, query, key]``.
        mask: The queries that count, ``[row, query]``.
        seen: The keys that a query may attend to, ``[query, key]``.

    Returns:
        ``[row, head]``; NaN for a row in which no counted query has a key of the class.
    """
    weights = _weights(keys, mask, seen)
    found = _mass(share, weights)
    return found.masked_fill(~weights.flatten(1).any(1)[:, None], torch.nan)


def _mass(share: Pattern, weights: Float[Tensor, "row query key"]) -> Float[Tensor, "row head"]:
    return torch.einsum("rhqk,rqk->rh", share, weights)


def _weights(
    keys: Keys, mask: Bool[Tensor, "row query"], seen: Bool[Tensor, "query key"]
) -> Float[Tensor, "row query key"]:
    """Return each key's weight in its row's mean: 1/(number of the row's counted queries), 0
    elsewhere."""
    keys = keys & seen & mask[..., None]
    return keys * query_weights(keys.any(-1))[..., None]


def _scores(
    score: Float[Tensor, "row head"],
    mean: Float[Tensor, "row head"],
    variance: Float[Tensor, " head"],
    kept: Int[Tensor, " row"],
) -> RowScores:
    """Return the scores of one class, for the rows that have a query with such a key."""
    counted = torch.ones(len(kept), 1, dtype=torch.bool)
    return RowScores(score[..., None], mean[..., None], variance[..., None], counted, kept)


def _against_positions(
    share: Pattern, weights: Float[Tensor, "row query key"], n: Float[Tensor, " query"]
) -> RowScores:
    kept = weights.flatten(1).any(1).nonzero()[:, 0]
    share, weights = share[kept], weights[kept]
    score = _mass(share, weights)
    inside = weights.sum(-1)  # [row, query] = c / (queries of the row)
    whole = share.sum(-1)  # 1, or 0 of a query that attends to nothing
    mean = torch.einsum("rhq,rq->rh", whole, inside / n)
    count, per_query = (weights > 0).sum(-1).double(), weights.amax(-1)
    spread = (share.square().sum(-1) / n - (whole / n) ** 2).clamp_min(0)  # [row, head, query]
    draw = count * (n - count) / (n - 1).clamp_min(1) * per_query**2
    return _scores(score, mean, torch.einsum("rhq,rq->h", spread, draw), kept)


def _against_tokens(share: Pattern, weights: Float[Tensor, "row query key"]) -> RowScores:
    kept = weights.flatten(1).any(1).nonzero()[:, 0]
    kept = kept if len(kept) > 1 else kept[:0]
    share, weights = share[kept], weights[kept]
    paired = torch.einsum("rhqk,sqk->rsh", share, weights)
    score = torch.diagonal(paired, dim1=0, dim2=1).T
    _, variance = others_moments(paired)
    # A row's own expectation: its attention on other rows' content, and others' on its own.
    mean = ((paired.sum(1) + paired.sum(0)) / 2 - score) / max(len(kept) - 1, 1)
    return _scores(score, mean, variance, kept)


def _uniform(
    share: Pattern, mask: Bool[Tensor, "row query"], n: Float[Tensor, " query"]
) -> RowScores:
    kept = mask.any(1).nonzero()[:, 0]
    share, mask = share[kept], mask[kept]
    per_query = mask.double() / mask.sum(1, keepdim=True)
    close = torch.minimum(share, (1 / n)[:, None]).sum(-1)
    mean, variance = _flat_moments(n)
    score = torch.einsum("rhq,rq->rh", close, per_query)
    total = (per_query**2 @ variance).sum().expand(share.shape[1])
    return _scores(score, (per_query @ mean)[:, None].expand_as(score), total, kept)


def _flat_moments(n: Float[Tensor, " query"]) -> tuple[Tensor, Tensor]:
    """Return mean and variance of Σ_j min(p_j, 1/n) for p uniform on the simplex of n weights.

    p_j > x and p_k > y with probability (1 − x − y)₊^{n−1}; integrate over [0, 1/n].
    """
    a = 1 / n
    mean = 1 - (1 - a) ** n
    square = 2 * (1 - (1 - a) ** (n + 1)) / (n * (n + 1)) - 2 * a * (1 - a) ** n / n
    both = 1 - 2 * (1 - a) ** (n + 1) + (1 - 2 * a).clamp_min(0) ** (n + 1)
    variance = n * square + (n - 1) / (n + 1) * both - mean**2
    return mean, torch.where(n > 1, variance.clamp_min(0), 0.0)
