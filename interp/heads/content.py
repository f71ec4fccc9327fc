"""How much of a head's attention goes to a kind of key: by position, by content, or by a latent.

A *class* of keys says for every query which keys belong to it, ``[row, query, key]``:

    previous     j = i − 1                    same         earlier token equal to the query's
    own          j = i                        after_same   right after such a token (induction)
    first        j = 0 (BOS, sink), i ≥ 1     NAME         j = i − t_i for a latent's lags t_i
    local        i − j < window

Where attention looks both ways, ``same`` and ``after_same`` have keys after the query too, latents
may be negative lags, and ``local`` is |i − j| < window.

    mass_h(class) = mean over rows of the mean over the row's queries that have such a key of
                    Σ_{j in class} pattern_h(i, j) / Σ_j pattern_h(i, j)
    uniform_h     = the same mean of Σ_j min(share_h(i, j), 1/n_i) over the n_i keys that the query
                    may attend to, 1 minus the total variation from even attention

Two nulls, both with exact mean and variance, so that nothing is sampled; sums over many queries
and rows are normal, and p is that tail:

    positions   each query's weights are permuted over the keys that it may attend to (causal or
                not, its own or not: :mod:`interp.heads.visible`): mean c/n and variance
                c (n−c)/(n−1) · (Σp²/n − 1/n²) for c of n keys. For ``uniform``: weights drawn flat
                from the simplex, mean 1 − (1 − 1/n)^n.
    tokens      the row is paired with another row's content: rows of a batch are permuted, with
                the moments of Hoeffding's combinatorial statistic. Only classes made of content.

A head that attends by position alone can look like induction on rows that repeat with one period;
against ``tokens`` it has no excess. That null in turn needs rows whose periods differ
(:func:`repeated_tokens`): where all rows repeat alike it finds nothing in any head.

Intervals are 95 % of a bootstrap over rows of which none is kept (:mod:`interp.heads.running`):
memory does not grow with rows. What attention mass does not establish: that anything is moved, or
used (see :mod:`interp.heads.effects`). Attention that is not a number is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import Problems
from interp.heads.classes import lag_class, position_classes, token_classes
from interp.heads.combinations import Combinations, Named, name_columns, with_combinations
from interp.heads.nulls import others_moments
from interp.heads.reading import Rows, layer_hooks, read_batches
from interp.heads.running import RESAMPLES, RowCounts, RowMeans
from interp.heads.table import head_table, score_row
from interp.heads.visible import Pattern, Visible, shares, told_by_patterns

__all__ = ["RESAMPLES", "AttentionMass", "attention_mass", "content_table"]

Keys = Bool[Tensor, "row query key"]


@dataclass(frozen=True)
class _Rows:
    """Per row: the score and its expectation under a null ``[row, head]``; the variance of their
    sum over the rows ``[head]``; which of the batch's rows they are ``[row]``."""

    score: Float[Tensor, "row head"]
    mean: Float[Tensor, "row head"]
    variance: Float[Tensor, "head"]
    kept: Int[Tensor, "row"]


class AttentionMass:
    """Scores that grow batch by batch; :meth:`table` gives what has been seen so far.

    Args:
        seed: Of the bootstrap's counts.
        resamples: Of the bootstrap; 0 for no intervals.
        causal: A query sees the keys up to its own; otherwise all of them. None to be told by the
            first batch's patterns.
        mask_self: A query does not see its own key. None likewise.
        combinations: Signed combinations of a layer's heads, measured beside them.
    """

    def __init__(
        self,
        seed: int = 0,
        resamples: int = RESAMPLES,
        causal: bool | None = None,
        mask_self: bool | None = None,
        combinations: Combinations | None = None,
    ) -> None:
        self.causal, self.mask_self, self.combinations = causal, mask_self, combinations
        self._counts = RowCounts(seed, resamples)
        self._sums: dict[tuple[int, str, str], tuple[Named, RowMeans]] = {}

    def add(
        self,
        patterns: Mapping[int, Pattern],
        positions: Mapping[str, Keys],
        contents: Mapping[str, Keys],
        mask: Bool[Tensor, "row query"],
        heads: Sequence[int] | None = None,
    ) -> None:
        """Take in one batch.

        Args:
            patterns: Layer → attention, normalised or not.
            positions: Classes that depend on positions alone.
            contents: Classes that depend on what a row holds.
            mask: Queries that count.
            heads: Which heads the patterns hold; all by default.

        Raises:
            ArgumentError: if attention is not finite, or lies on keys that should be masked.
        """
        visible = self._visible(patterns)
        counts = self._counts.draw(len(mask))
        for layer, pattern in patterns.items():
            numbers = range(pattern.shape[1]) if heads is None else heads
            named, whole = with_combinations(layer, pattern, numbers, self.combinations)
            seen = visible.keys(pattern.shape[-1])
            share = shares(layer, whole, seen, named)
            for (name, null), rows in _measured(share, positions, contents, mask, seen):
                empty = named, RowMeans((len(named),), self._counts.resamples)
                _, sums = self._sums.setdefault((layer, name, null), empty)
                one = torch.ones(len(rows.kept), 1, dtype=torch.float64)
                sums.add(rows.score, one, counts[:, rows.kept], rows.mean, rows.variance)

    def table(self) -> pd.DataFrame:
        """A head table: metric ``attention_mass``, target = the class, circuit = the null,
        component ``group`` for combinations;
        ``low`` and ``high`` bound the effect. NaN where no query has a key of the class."""
        lines = (_lines(key, heads, sums) for key, (heads, sums) in self._sums.items())
        return head_table(chain.from_iterable(lines))

    def _visible(self, patterns: Mapping[int, Pattern]) -> Visible:
        if self.causal is None or self.mask_self is None:
            told = told_by_patterns(patterns.values())
            self.causal = told.causal if self.causal is None else self.causal
            self.mask_self = told.mask_self if self.mask_self is None else self.mask_self
        return Visible(self.causal, self.mask_self)


def attention_mass(
    batches: Iterable[Rows],
    *,
    window: int = 4,
    lags: Sequence[str] = (),
    classes: Callable[[Rows], Mapping[str, Keys]] | None = None,
    combinations: Combinations | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Attention mass of every head by class, from batches of patterns.

    Args:
        batches: From :func:`interp.heads.reading.read_batches`.
        window: Keys that count as local: the query's own and the ``window − 1`` before.
        lags: Latents whose values are lags t_i ≥ 0: the class ``NAME`` is the key i − t_i.
        classes: More content classes of a batch: ``[row, query, key]``, true on keys of the class.
        combinations: Layer → name → a signed coefficient for each of its heads: what they attend
            to together (:mod:`interp.heads.combinations`).
        seed, resamples: Of the bootstrap.

    Raises:
        ArgumentError: if no row came, a latent is not there, or attention is not finite.
    """
    found: AttentionMass | None = None
    for rows in batches:
        patterns = {int(hook.split(".")[1]): v for hook, v in rows.activations.items()}
        if found is None:
            seen = rows.visible or told_by_patterns(patterns.values())
            masks = seen.causal, seen.mask_self
            found = AttentionMass(seed, resamples, *masks, combinations)
        both_ways = {"causal": bool(found.causal)}
        contents = token_classes(rows.inputs, **both_ways) if rows.inputs.ndim == 2 else {}
        contents |= {name: lag_class(rows.latent(name), **both_ways) for name in lags}
        contents |= dict(classes(rows)) if classes is not None else {}
        n = next(iter(patterns.values())).shape[-1]
        positions = position_classes(len(rows), n, window, **both_ways)
        found.add(patterns, positions, contents, rows.mask, rows.heads)
    problems = Problems("attention_mass")
    problems.need(found is not None, "batches", "must hold rows", 0, "give some")
    problems.raise_if_any()
    return head_table([]) if found is None else found.table()


def content_table(
    source: Any,
    inputs: Any = None,
    *,
    layers: Sequence[int] | None = None,
    batch: int = 8,
    **options: Any,
) -> pd.DataFrame:
    """Attention mass by class of every head of a model, or of a store's patterns.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore` with
            ``hook_pattern`` stored.
        inputs: For a model: tokens ``[row, pos]``, real inputs, or a
            :class:`~interp.tasks.base.Batch` (its mask and latents are used). None for a store.
        layers: Which; all (that are stored) by default.
        batch: Rows at a time; with the sequence length it decides the memory used.
        options: As for :func:`attention_mass`.

    Returns:
        A head table with ``low`` and ``high``; see :meth:`AttentionMass.table`.

    Raises:
        ArgumentError: for arguments that do not fit; HookError: for patterns that are not stored.
    """
    problems = Problems("content_table")
    rule, advice = "must be at least 2", "the null exchanges the rows of a batch"
    problems.need(batch >= 2, "batch", rule, batch, advice)
    problems.raise_if_any()
    hooks = layer_hooks(source, "attn.hook_pattern", layers)
    return attention_mass(read_batches(source, inputs, hooks, batch=batch), **options)


def _measured(
    share: Pattern,
    positions: Mapping[str, Keys],
    contents: Mapping[str, Keys],
    mask: Bool[Tensor, "row query"],
    seen: Bool[Tensor, "query key"],
) -> Iterator[tuple[tuple[str, str], _Rows]]:
    """(class, null) → rows."""
    n = seen.sum(-1).double()
    mask, n = mask & (n > 0), n.clamp_min(1)
    yield ("uniform", "positions"), _uniform(share, mask, n)
    for name, keys in {**positions, **contents}.items():
        weights = _weights(keys, mask, seen)
        yield (name, "positions"), _against_positions(share, weights, n)
        if name in contents:
            yield (name, "tokens"), _against_tokens(share, weights)


def _weights(
    keys: Keys, mask: Bool[Tensor, "row query"], seen: Bool[Tensor, "query key"]
) -> Float[Tensor, "row query key"]:
    """1/(number of counted queries) on the keys of a class, 0 elsewhere."""
    keys = keys & seen & mask[..., None]
    eligible = keys.any(-1).sum(-1).clamp_min(1)
    return keys.double() / eligible[:, None, None]


def _against_positions(
    share: Pattern, weights: Float[Tensor, "row query key"], n: Float[Tensor, "query"]
) -> _Rows:
    kept = weights.flatten(1).any(1).nonzero()[:, 0]
    share, weights = share[kept], weights[kept]
    score = torch.einsum("rhqk,rqk->rh", share, weights)
    inside = weights.sum(-1)  # [row, query] = c / (queries of the row)
    whole = share.sum(-1)  # 1, or 0 of a query that attends to nothing
    mean = torch.einsum("rhq,rq->rh", whole, inside / n)
    count, per_query = (weights > 0).sum(-1).double(), weights.amax(-1)
    spread = (share.square().sum(-1) / n - (whole / n) ** 2).clamp_min(0)  # [row, head, query]
    draw = count * (n - count) / (n - 1).clamp_min(1) * per_query**2
    return _Rows(score, mean, torch.einsum("rhq,rq->h", spread, draw), kept)


def _against_tokens(share: Pattern, weights: Float[Tensor, "row query key"]) -> _Rows:
    kept = weights.flatten(1).any(1).nonzero()[:, 0]
    kept = kept if len(kept) > 1 else kept[:0]
    share, weights = share[kept], weights[kept]
    paired = torch.einsum("rhqk,sqk->rsh", share, weights)
    score = torch.diagonal(paired, dim1=0, dim2=1).T
    _, variance = others_moments(paired)
    # A row's own expectation: its attention on other rows' content, and others' on its own.
    mean = ((paired.sum(1) + paired.sum(0)) / 2 - score) / max(len(kept) - 1, 1)
    return _Rows(score, mean, variance, kept)


def _uniform(share: Pattern, mask: Bool[Tensor, "row query"], n: Float[Tensor, "query"]) -> _Rows:
    kept = mask.any(1).nonzero()[:, 0]
    share, mask = share[kept], mask[kept]
    per_query = mask.double() / mask.sum(1, keepdim=True)
    close = torch.minimum(share, (1 / n)[:, None]).sum(-1)
    mean, variance = _flat_moments(n)
    score = torch.einsum("rhq,rq->rh", close, per_query)
    total = (per_query**2 @ variance).sum().expand(share.shape[1])
    return _Rows(score, (per_query @ mean)[:, None].expand_as(score), total, kept)


def _flat_moments(n: Float[Tensor, "query"]) -> tuple[Tensor, Tensor]:
    """Mean and variance of Σ_j min(p_j, 1/n) for p uniform on the simplex of n weights.

    p_j > x and p_k > y with probability (1 − x − y)₊^{n−1}; integrate over [0, 1/n].
    """
    a = 1 / n
    mean = 1 - (1 - a) ** n
    square = 2 * (1 - (1 - a) ** (n + 1)) / (n * (n + 1)) - 2 * a * (1 - a) ** n / n
    both = 1 - 2 * (1 - a) ** (n + 1) + (1 - 2 * a).clamp_min(0) ** (n + 1)
    variance = n * square + (n - 1) / (n + 1) * both - mean**2
    return mean, torch.where(n > 1, variance.clamp_min(0), 0.0)


def _lines(key: tuple[int, str, str], heads: Named, sums: RowMeans) -> Iterator[dict[str, Any]]:
    layer, name, null = key
    scores, (low, high) = sums.scores().tolist(), sums.intervals().tolist()
    for place, head in enumerate(heads):
        yield score_row(
            "attention_mass", scores[place], sums.null((place,)),
            layer=layer, circuit=null, target=name, interval=(low[place], high[place]),
            **name_columns(head),
        )  # fmt: skip
