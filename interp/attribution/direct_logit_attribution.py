"""What each head and FFN writes directly along a direction: of the output, or of a latent.

The residual stream is a sum of what the parts write
(:mod:`interp.attribution.residual_decomposition`), so along a direction w the stream's value y =
⟨w, stream⟩ is the sum of the parts' c.

    direct_share  Cov(c, y) / Var(y) over all scored positions; the shares of all parts sum to 1,
                  one may be negative (it works against the others) or exceed 1. Its effect is the
                  covariance within positions (:mod:`interp.stats.variance_explained`)
    direct_logit  mean over rows of the mean over scored positions of ⟨R[token], c / scale⟩ for the
                  target token: what the part adds to its logit, less the mean logit. R is the
                  unembedding with the final norm's gain
                  (:mod:`interp.attribution.unembedding`), the norm's scale is held. With
                  ``offset``, the norm's bias and b_U, which no part writes, the scores of all parts
                  sum to the logit

The null pairs a part's writes of a row with another row's y or targets: for shares over all rows,
for logits in blocks of rows (:mod:`interp.attribution.logits_by_head`), with exact mean and
variance either way. Intervals are a Poisson bootstrap over rows. Nothing depends on how rows are
cut into batches; memory does not grow with rows. Rows in which nothing is scored are left out.

A direct contribution leaves out what later parts make of it; a large share along a direction does
not show that anything reads the direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from interp.attribution.logits_by_head import TargetLogits
from interp.attribution.residual_decomposition import (
    Ids,
    ResidualDecomposition,
    StreamPlace,
    decomposed,
)
from interp.attribution.unembedding import unembedding
from interp.errors import HookError, Problems
from interp.stats.bootstrap import RESAMPLES, RowCounts
from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Null
from interp.stats.variance_explained import VarianceExplained

__all__ = ["Direction", "direct_logit_attribution"]

_WEIGHTS = ("blocks", "W_U", "ln_final")

_Result = tuple[str, float, Null, tuple[float, float]]
"""A part's label, score and null, and the interval of its effect."""


@dataclass(frozen=True)
class Direction:
    """A direction in the residual stream at one place of the model.

    Attributes:
        vector: The direction, ``[d_model]``.
        layer: The layer whose incoming stream is meant; ``n_layers`` means the stream before the
            final norm.
        between: Whether the stream between this layer's attention and FFN is meant instead.
    """

    vector: Float[Tensor, " d_model"]
    layer: int
    between: bool = False


def direct_logit_attribution(
    model: Any,
    source: Any,
    directions: Mapping[str, Direction] | None = None,
    *,
    batch: int = 16,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """The direct contributions of every head, FFN and embedding to logits or along directions.

    Args:
        model: A hooked model; its weights are needed for a store, too.
        source: A :class:`~interp.tasks.base.Batch`, inputs, or a store that holds the embedding,
            ``hook_z`` (or ``hook_result``), ``hook_mlp_out`` and, with a norm, its scale. Of a
            store that keeps some heads those alone are given; shares then need the stream itself
            (``hook_resid_post``).
        directions: Name → direction, e.g. a latent's readout from
            :func:`probes.linear.direction`. None for the output: one direction for each output
            channel, or the target token's logit for token targets.
        batch: How many rows are run at a time.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: components ``head``, ``ffn`` and, with layer −1,
        ``embed``, ``pos_embed``, ``bias`` (what output biases add to the stream) and ``offset`` (of
        logits alone); metric ``direct_share`` or ``direct_logit``, target = the direction's name
        or ``output``; p is two-sided. NaN along a direction in which the stream does not vary.

    Raises:
        ArgumentError: for fewer than two rows in which something is scored, a direction that does
            not fit, a model without a residual stream, or activations that are not finite.
        HookError: for a model without TransformerLens' weight names, as a wrapped module is; for a
            store that lacks a hook.
    """
    rows = _checked(model, source, directions, batch)
    counts = RowCounts(seed, resamples)
    found: TargetLogits | _SharesByDirection
    if directions is None and not rows.real:
        found = TargetLogits(rows, counts)
    else:
        found = _SharesByDirection(rows, _along(model, directions), counts)
    for group in rows.groups:
        for start in range(0, len(group), batch):
            found.add(group, start, min(start + batch, len(group)))
    if isinstance(found, TargetLogits):
        return head_table(_line("direct_logit", "output", one) for one in found.results())
    return head_table(_line("direct_share", name, one) for name, one in found.results())


def _checked(
    model: Any, source: Any, directions: Mapping[str, Direction] | None, batch: int
) -> ResidualDecomposition:
    lacking = [name for name in _WEIGHTS if not hasattr(model, name)]
    if lacking:
        raise HookError(
            f"{type(model).__name__} has no {', '.join(lacking)}: what a head writes is told "
            "by W_O, which our models and bridges have; ablation (ablate) does without"
        )
    problems = Problems("direct_logit_attribution")
    problems.need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    adds = getattr(getattr(model, "spec", None), "residual", True)
    advice = "nothing adds up where a block replaces the stream; ablate instead"
    problems.need(adds, "model", "must have a residual stream", "residual=False", advice)
    for name, direction in (directions or {}).items():
        _check_direction(problems, name, direction, model.cfg)
    problems.raise_if_any()
    rows = decomposed(model, source)
    scored, advice = sum(map(len, rows.groups)), "the null and the interval compare rows"
    rule = "must have at least 2 rows in which something is scored"
    problems.need(scored >= 2, "source", rule, scored, advice)
    problems.raise_if_any()
    return rows


def _check_direction(problems: Problems, name: str, direction: Direction, cfg: Any) -> None:
    width, what = tuple(direction.vector.shape), f"direction {name}"
    problems.need(width == (cfg.d_model,), what, f"must be [{cfg.d_model}]", width, "reshape it")
    finite = bool(direction.vector.isfinite().all())
    problems.need(finite, what, "must be finite", "NaN or infinity", "fit it anew")
    last = cfg.n_layers - direction.between
    rule = f"must be at a layer from 0 to {last}"
    problems.need(0 <= direction.layer <= last, what, rule, direction.layer, "name another layer")


@dataclass(frozen=True)
class _Along:
    """What shares are computed of: the stream's value along a direction, or an output channel."""

    name: str
    vector: Tensor
    place: StreamPlace
    output: bool = False


def _along(model: Any, directions: Mapping[str, Direction] | None) -> list[_Along]:
    if directions is not None:
        return [
            _Along(name, one.vector, (one.layer, one.between)) for name, one in directions.items()
        ]
    vectors, place = unembedding(model, centred=False).cpu().T, (model.cfg.n_layers, False)
    names = [f"output[{i}]" for i in range(len(vectors))] if len(vectors) > 1 else ["output"]
    return [_Along(name, vector, place, True) for name, vector in zip(names, vectors, strict=True)]


class _SharesByDirection:
    """The variance shares of every part along some directions."""

    def __init__(
        self, rows: ResidualDecomposition, along: Sequence[_Along], counts: RowCounts
    ) -> None:
        self._rows, self._along, self._counts = rows, along, counts
        self._sums: dict[str, VarianceExplained] = {}
        rows.need([one.place for one in along], stream=True, scale=any(o.output for o in along))

    def add(self, group: Ids, start: int, stop: int) -> None:
        """Add some rows of a group."""
        ids, counts = group[start:stop], self._counts.draw(stop - start)
        cache, (_, mask) = self._rows.cache(ids), self._rows.aims(ids)
        for place in dict.fromkeys(one.place for one in self._along):
            labels, stack = self._rows.parts(cache, place)
            stream = self._rows.stream(cache, place, stack)
            for one in (one for one in self._along if one.place == place):
                scale = self._rows.scale(cache)[..., 0] if one.output else 1.0
                vector = one.vector.detach().to(stack)
                if one.name not in self._sums:
                    empty = VarianceExplained(labels, self._rows.length, self._counts.resamples)
                    self._sums[one.name] = empty
                self._sums[one.name].add(
                    stack @ vector / scale, stream @ vector / scale, mask, counts
                )

    def results(self) -> Iterator[tuple[str, _Result]]:
        """The name of each direction, with each part's result from :class:`VarianceExplained`."""
        for one in self._along:
            yield from ((one.name, found) for found in self._sums[one.name].results())


def _line(metric: str, target: str, found: _Result) -> dict[str, Any]:
    label, score, null, interval = found
    return score_row(metric, score, null, **_place(label), target=target, interval=interval)


def _place(label: str) -> dict[str, Any]:
    if found := re.fullmatch(r"L(\d+)H(\d+)", label):
        return {"component": "head", "layer": int(found[1]), "head": int(found[2])}
    if found := re.fullmatch(r"(\d+)_mlp_out", label):
        return {"component": "ffn", "layer": int(found[1])}
    return {"component": label, "layer": -1}
