"""Measure how much worse a model's output is without each component: a table with one row per
component.

    score = mean over rows of (loss without the component − loss with it)

A component is replaced by edits of a run (:mod:`interp.interventions.replacement`). The loss is a
metric; another one, such as a logit difference, can be given. The loss of a row is the mean over
scored positions of the squared error, as a share of the target's variance (real targets), or of the
cross-entropy in nats (tokens).

For the loss, two null hypotheses must be rejected: that the rows' differences have mean 0, and that
the loss rises as much with other rows' targets (:func:`interp.stats.nulls.need_null`). For other
metrics the null hypothesis is mean 0. The interval is a bootstrap over rows.

An effect shows that the model as it is now relies on the component. It does not show what the
component computes. A component for which another one compensates has no effect.
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
    """Return the unit in which losses are given: the variance of real scored targets, or 1
    (nat)."""
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
        model: One of our models, a bridge, or a wrapped module (one forward pass per component).
        batch: Rows with targets; or token ids ``[row, pos]``, whose targets are the next tokens.
        parts: The components, or their names (``L2H0``, ``L2 FFN``); every head, FFN and layer by
            default.
        how: The replacement of the components' outputs: ``mean``, ``zero``, ``resample`` or
            ``swap``; means and other rows' values are taken from the first ``rows`` rows.
        corrupted: The inputs from which ``swap`` takes its values, paired row by row with the
            batch.
        metric: The metric that should get worse: the loss; a :class:`~interp.run.metrics.Metric`
            such as ``LogitDifference``; or a function of outputs ``[place, output]`` and targets
            ``[place, …]`` at scored positions that returns a number per place, where more is worse.
        rows: The number of rows that are run at a time; the first ones also give means and other
            rows' values.
        seed: Seed of the resampled rows and of the intervals.
        tokens: At most this many positions per forward pass (at least one row); it bounds the
            memory.
        backend: ``local``, or ``ray`` to spread the components over Ray tasks.

    Returns:
        A head table with ``low`` and ``high``; metric ``loss_increase``
        (``logit_difference_decrease``, or the function's name), method = ``how``, target = the
        position for positions and ``output`` otherwise. More is worse. The null of the loss is that
        of :func:`interp.stats.nulls.need_null`, that of other metrics a mean of 0 over rows.

    Raises:
        ArgumentError: if only one of ``how="swap"`` and ``corrupted`` is given; if there are fewer
            than two rows to average or resample; if the model does not have a component; if a
            metric is not finite.
        HookError: if a wrapped module lacks a component's hooks.
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
    """Yield each component's rise, measured one layer at a time to bound the memory (on Ray all at
    once)."""
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
    """Average rises over the positions that are scored both in a row and in the row that the
    targets come from; where there are none, return the mean over the other target rows."""
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
    """Turn each component's increases of the loss, or of another metric, on the rows of a batch
    into a head table, with the null that their mean is 0.

    Args:
        found: Component → the increase on each row, in squared error, nats or the metric's unit.
        batch: The rows; a squared error is given as a share of the variance of their targets.
        how: The name of the replacement of the components' outputs.
        seed: Seed of the bootstrap.
        site: The only receiver that saw the replacement; empty if all of the model did.
        metric: The metric that was measured.
    """
    unit, rows = loss_unit(batch) if isinstance(metric, Loss) else 1.0, []
    for part, lost in found.items():
        own = _beyond_rounding(lost / unit)
        rows.append(_line(part, own, paired_null(own), how, seed, metric) | {"site": site})
    return head_table(rows, family=ANY_TARGET)


def _beyond_rounding(rises: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Set to 0 the rises that are so small that another batch size could cause them by rounding."""
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
