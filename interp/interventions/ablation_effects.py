"""How much worse the output is without each component, as a table with one row per component.

    score = mean over rows of (loss without the component − loss with it)

A component is a list of edits of a run (:mod:`interp.interventions.replacement`), the loss a
metric, and another metric, such as a logit difference, can be asked for. The loss of a row is the
mean over scored positions of the squared error, as a share of the target's variance (real targets),
or of the cross-entropy in nats (tokens). The null is that the rows' differences have mean 0, or are
what they would be with other rows' targets (:func:`interp.stats.nulls.need_null`); the interval is
a bootstrap over rows.

An effect shows reliance of the model as it is now, not what is computed; a component whose loss
another makes up for has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import Problems, refuse_unless
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import Component, every_component, named_components
from interp.interventions.replacement import need_rows, replacement
from interp.ray_tasks import Backend
from interp.run.edits import Array, Edit
from interp.run.gate import admit_batch, rows_of
from interp.run.metrics import Loss, LossOfOthers, Metric, as_metric
from interp.run.run import Run
from interp.stats.bootstrap import row_interval
from interp.stats.head_table import ANY_TARGET, head_table, score_row
from interp.stats.nulls import need_null, paired_null
from interp.stats.p_values import Null
from interp.tasks.base import Batch

_ROUNDING = 1e-6  # what another batch size can make of the same loss
_LOSS = Loss()


def loss_unit(batch: Batch) -> float:
    """The unit of losses: the variance of the scored targets if they are real, else 1 nat."""
    if not batch.targets.is_floating_point():
        return 1.0
    return float(batch.targets[batch.mask].double().var()) or 1.0


@torch.no_grad()
def ablate(
    model: HookedModel,
    batch: Any,
    parts: Sequence[Component | str] | Component | str | None = None,
    *,
    how: str = "mean",
    corrupted: Any = None,
    metric: Any = _LOSS,
    rows: int = 64,
    seed: int = 0,
    tokens: int = 1024,
    backend: Backend = "local",
) -> pd.DataFrame:
    """Measure how much worse a model does without each component, tested against no change.

    Args:
        model: Ours, a bridge, or a wrapped module (one forward pass a component).
        batch: Rows with targets; or token ids ``[row, pos]``, whose targets are the next tokens.
        parts: The components, or their names (``L2H0``, ``L2 FFN``); every head, FFN and layer by
            default.
        how: What replaces the components' writes; means and other rows' values are taken from the
            first ``rows`` rows.
        corrupted: The inputs from which ``swap`` takes its values, paired row by row with the
            batch.
        metric: What is asked of the output: the loss; a :class:`~interp.run.metrics.Metric` such as
            ``LogitDifference``; or a function of outputs ``[place, output]`` and targets ``[place,
            …]`` at scored positions that gives a number a place, where more is worse.
        rows: How many rows are run at a time; the first so many also give means and other rows'
            values.
        seed: Seed of the resampled rows and of the intervals.
        tokens: At most this many positions per forward pass (at least one row); it bounds the
            memory.
        backend: ``local``, or ``ray``: components are spread as tasks.

    Returns:
        A head table with ``low`` and ``high``; metric ``loss_increase`` (``logit_difference_
        decrease``, or the function's name), method = ``how``, target = the position for positions
        and ``output`` otherwise. More is worse. The null of the loss is that of
        :func:`interp.stats.nulls.need_null`, that of other metrics a mean of 0 over rows.

    Raises:
        ArgumentError: for ``swap`` without corrupted inputs, or those without ``swap``; for fewer
            than two rows to average or resample; for components that the model does not have; for
            a metric that is not finite.
        HookError: for a wrapped module without a component's hooks.
    """
    batch = admit_batch(model, batch)
    named = every_component(model) if parts is None else named_components(parts)
    chosen = tuple(dict.fromkeys(named))
    given, corrupted = corrupted, None if corrupted is None else rows_of(corrupted)
    good, rule = given is None or corrupted is not None, "must be inputs like the batch's"
    refuse_unless(good, "corrupted", rule, given, "give a tensor or a Batch")
    _check(model, batch, chosen, how, corrupted, rows, tokens)
    measured, found = as_metric(metric), dict[Component, list[np.ndarray]]()
    by_targets = isinstance(measured, Loss)
    first = Array(batch.inputs[:rows], "the first rows")
    for start in range(0, len(batch), rows):
        block = batch[start : start + rows]
        source = first if start else None
        if corrupted is not None:
            source = Array(corrupted[start : start + rows], "the corrupted rows")
        run = Run(model, block, tokens=tokens)
        asked = LossOfOthers(Array(block.targets)) if by_targets else measured
        edits = {part: replacement(model, part, how, source, seed) for part in chosen}
        for part, rise in _rises(run, edits, asked, backend):
            losses = _by_target(rise, block.mask) if by_targets else run.by_row(rise)
            found.setdefault(part, []).append(measured.worse * losses.numpy())
    unit = loss_unit(batch) if by_targets else 1.0
    lines = []
    for part, pieces in found.items():
        lost = [_beyond_rounding(piece / unit) for piece in pieces]
        own = np.concatenate([np.diagonal(p) if by_targets else p for p in lost])
        null = need_null(lost) if by_targets else paired_null(own)
        lines.append(_line(part, own, null, how, seed, measured))
    return head_table(lines, family=ANY_TARGET)


def _rises(
    run: Run, edits: Mapping[Component, tuple[Edit, ...]], metric: Metric, backend: Backend
) -> Iterator[tuple[Component, Tensor]]:
    """The rise for each component, a layer at a time so that few are held (on Ray in one go)."""
    order = {"position": 0, "head": 1}
    parts = sorted(edits, key=lambda part: (part.layer, order.get(part.kind, 2)))
    groups = groupby(parts, key=lambda part: part.layer if backend == "local" else 0)
    for here in [list(some) for _, some in groups]:
        many = [edits[part] for part in here]
        yield from zip(here, run.rises(many, metric, backend=backend), strict=True)
        run.forget()


def _by_target(
    rises: Float[Tensor, "row pos other"], mask: Bool[Tensor, "row pos"]
) -> Float[Tensor, "row other"]:
    """The mean of rises over positions where the row and the one whose targets stand in are both
    scored; the mean over the others where there are none."""
    both = mask[:, :, None] & mask.T[None]
    count = both.sum(1)
    total = (rises * both).sum(1)
    mean = total.sum(1, keepdim=True) / count.sum(1, keepdim=True).clamp_min(1)
    return torch.where(count > 0, total / count.clamp_min(1), mean)


def effect_table(
    found: Mapping[Component, Float[np.ndarray, " row"]],
    batch: Batch,
    how: str,
    seed: int,
    *,
    site: str = "",
    metric: Metric = _LOSS,
) -> pd.DataFrame:
    """Turn each component's increases of the loss, or of a metric, on the rows of a batch into a
    head table, with the null that their mean is 0.

    Args:
        found: Component → by how much each row's loss is higher, squared errors or nats.
        batch: The rows, whose targets say what a squared error is a share of.
        how: What replaced the components' writes.
        seed: Seed of the bootstrap.
        site: Where the components' writes were replaced, if not everywhere.
        metric: What was measured.
    """
    unit, rows = loss_unit(batch) if isinstance(metric, Loss) else 1.0, []
    for part, lost in found.items():
        own = _beyond_rounding(lost / unit)
        rows.append(_line(part, own, paired_null(own), how, seed, metric) | {"site": site})
    return head_table(rows, family=ANY_TARGET)


def _beyond_rounding(rises: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Rises of which those that another batch size can make count as none."""
    return np.where(np.abs(rises) <= _ROUNDING, 0.0, rises)


def _check(
    model: HookedModel,
    batch: Batch,
    parts: Sequence[Component],
    how: str,
    corrupted: Tensor | None,
    rows: int,
    tokens: int,
) -> None:
    problems = Problems("ablate")
    problems.need(len(batch) > 0, "batch", "must have rows", len(batch), "give some")
    problems.need(rows >= 1, "rows", "must be at least 1", rows, "take about 64")
    alone = how in ("mean", "resample") and 1 in (rows, len(batch))
    rule, advice = f"must be two rows at least with how={how!r}", "one row has no other"
    problems.need(not alone, "rows", rule, min(rows, len(batch)), advice)
    swapped = (how == "swap") == (corrupted is not None)
    shown = None if corrupted is None else f"inputs with how={how!r}"
    problems.need(
        swapped, "corrupted", "goes with how='swap', and swap with it", shown, "give both"
    )
    shape = batch.inputs.shape if corrupted is None else corrupted.shape
    rule = f"must be shaped {tuple(batch.inputs.shape)}, as the batch's inputs"
    problems.need(shape == batch.inputs.shape, "corrupted", rule, tuple(shape), "pair the rows")
    problems.raise_if_any()
    need_rows(problems, model, batch.inputs, parts, how, corrupted, tokens)
    problems.raise_if_any()


def _line(
    part: Component,
    increases: Float[np.ndarray, " row"],
    null: Null,
    how: str,
    seed: int,
    metric: Metric,
) -> dict[str, Any]:
    target = str(part.position) if part.kind == "position" else "output"
    return score_row(
        metric.loss_name,
        float(increases.mean()),
        null,
        component=part.kind,
        layer=part.layer,
        head=part.head,
        method=how,
        target=target,
        interval=row_interval(increases, seed=seed),
    )
