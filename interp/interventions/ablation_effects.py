"""How much worse the output is without each component, as a table with one row per component.

    loss_increase = mean over rows of (loss without the component − loss with it)

The loss of a row is the mean over scored positions of the squared error, as a share of the
target's variance (real targets), or of the cross-entropy in nats (tokens). The null is that the
rows' differences have mean 0, or are what they would be with other rows' targets
(:func:`interp.stats.nulls.need_null`); the interval is a bootstrap over rows.

Only heads, FFNs, layers and positions as the model uses them now are judged; see
:mod:`interp.interventions.ablate` for what an ablation does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import model_device
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablate import ablated_by_rows, every_component
from interp.interventions.components import Component
from interp.interventions.prefix_reuse import not_finite
from interp.stats.bootstrap import row_interval
from interp.stats.head_table import ANY_TARGET, head_table, score_row
from interp.stats.nulls import need_null, paired_null
from interp.stats.p_values import Null
from interp.tasks.base import Batch

__all__ = [
    "ablate",
    "effect_table",
    "loss_unit",
    "losses_with_targets",
    "next_tokens",
    "position_losses",
    "row_losses",
]


_ROUNDING = 1e-6  # what another batch size can make of the same loss


def next_tokens(tokens: Tensor, start: int = 0) -> Batch:
    """A batch of tokens ``[row, pos]`` whose targets are the next tokens, scored from ``start``
    on."""
    targets = torch.cat((tokens[:, 1:], tokens[:, :1]), dim=1)
    mask = torch.ones(tokens.shape, dtype=torch.bool)
    mask[:, :start], mask[:, -1] = False, False
    return Batch(tokens, targets, mask)


def row_losses(output: Tensor, batch: Batch) -> Float[Tensor, " row"]:
    """Each row's mean loss over its scored positions: squared error, or nats for token targets."""
    losses, mask = position_losses(output, batch.targets), batch.mask.double()
    return (losses * mask).sum(1) / mask.sum(1).clamp_min(1)


def loss_unit(batch: Batch) -> float:
    """The unit of losses: the variance of the scored targets if they are real, else 1 nat."""
    if not batch.targets.is_floating_point():
        return 1.0
    return float(batch.targets[batch.mask].double().var()) or 1.0


def position_losses(output: Tensor, targets: Tensor) -> Float[Tensor, "*place"]:
    """The loss at each position: squared error averaged over channels, or cross-entropy in nats.

    Exponentials are taken in the output's precision (at least single), their logarithm in double.
    """
    output, targets = output.detach(), targets.to(output.device)
    if targets.is_floating_point():
        return (output.double() - targets.double()).square().mean(-1).cpu()
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    largest = output.amax(-1, keepdim=True)
    total = (output - largest).exp_().sum(-1).double().log() + largest[..., 0].double()
    return (total - output.gather(-1, targets.long()[..., None])[..., 0].double()).cpu()


def losses_with_targets(
    output: Float[Tensor, "scored output"], batch: Batch, others: Batch
) -> Float[Tensor, "row other"]:
    """Each row's mean loss with the targets of each of the other rows.

    Args:
        output: The output at the scored positions of the batch.
        batch: Rows; where they are scored says where the output is from.
        others: Rows as long whose targets stand in. A row and another are compared at positions
            where both are scored; where there are none, the mean over the others is taken.
    """
    rows, places = torch.nonzero(batch.mask, as_tuple=True)
    weights = others.mask.T[places].double()
    losses = _losses_of(output.detach(), others.targets.transpose(0, 1)[places]) * weights
    shape = len(batch), len(others)
    total = torch.zeros(shape, dtype=torch.float64).index_add_(0, rows, losses)
    count = torch.zeros(shape, dtype=torch.float64).index_add_(0, rows, weights)
    mean = total.sum(1, keepdim=True) / count.sum(1, keepdim=True).clamp_min(1)
    return torch.where(count > 0, total / count.clamp_min(1), mean)


def _losses_of(
    output: Float[Tensor, "scored output"], targets: Tensor
) -> Float[Tensor, "scored other"]:
    """The loss of each output with each of several targets, ``[scored, other(, output)]``."""
    if not targets.is_floating_point():
        first = position_losses(output, targets[:, 0])[:, None]
        picked = output.gather(-1, targets.long().to(output.device)).double().cpu()
        return first + picked[:, :1] - picked
    each = output.double().cpu(), targets.double()
    cross = torch.einsum("so,sno->sn", *each)
    squares = [one.square().sum(-1) for one in each]
    return (squares[0][:, None] - 2 * cross + squares[1]) / output.shape[-1]


@torch.no_grad()
def ablate(
    model: HookedModel,
    batch: Batch,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    corrupted: Tensor | None = None,
    rows: int = 64,
    seed: int = 0,
    tokens: int = 1024,
) -> pd.DataFrame:
    """The increase of the loss when each component is ablated, tested against no increase.

    Args:
        model: Ours, a bridge, or a wrapped module (one forward pass a component).
        batch: Rows with targets; see :func:`next_tokens` for language models.
        parts: The components to ablate; every head, FFN and layer by default.
        how: What replaces the components' writes; means and other rows' values are taken from the
            first ``rows`` rows.
        corrupted: The inputs from which ``swap`` takes its values, paired row by row with the
            batch.
        rows: How many rows are run at a time; the first so many also give means and other rows'
            values.
        seed: Seed of the resampled rows and of the intervals.
        tokens: At most this many positions per forward pass (at least one row); it bounds the
            memory.

    Returns:
        A head table with ``low`` and ``high``; metric ``loss_increase``, method = ``how``,
        target = the position for positions and ``output`` otherwise.

    Raises:
        ArgumentError: for ``swap`` without corrupted inputs, or those without ``swap``; for fewer
            than two rows to average or resample; for components that the model does not have; for
            a loss that is not finite.
        HookError: for a wrapped module without a component's hooks.
    """
    _check(batch, how, corrupted, rows)
    options: dict[str, Any] = {"how": how, "seed": seed, "tokens": tokens}
    chosen = every_component(model) if parts is None else tuple(dict.fromkeys(parts))
    found: dict[Component, list[np.ndarray]] = {}
    for part, increases in _increases(model, batch, chosen, corrupted, rows, options):
        found.setdefault(part, []).append(increases.numpy())
    lost = [part.name for part, pieces in found.items() if not all(map(_finite, pieces))]
    problems = Problems("ablate")
    rule, advice = f"must leave a finite loss with how={how!r}", "replace them in another way"
    problems.need(not lost, "parts", rule, lost, advice)
    problems.raise_if_any()
    unit, lines = loss_unit(batch), []
    for part, pieces in found.items():
        rises = [_beyond_rounding(piece / unit) for piece in pieces]
        own = np.concatenate([np.diagonal(piece) for piece in rises])
        lines.append(_line(part, own, need_null(rises), how, seed))
    return head_table(lines, family=ANY_TARGET)


def effect_table(
    found: Mapping[Component, Float[np.ndarray, " row"]],
    batch: Batch,
    how: str,
    seed: int,
    *,
    site: str = "",
) -> pd.DataFrame:
    """Turn each component's loss increases on the rows of a batch into a head table, with the null
    that their mean is 0.

    Args:
        found: Component → by how much each row's loss is higher, squared errors or nats.
        batch: The rows, whose targets say what a squared error is a share of.
        how: What replaced the components' writes.
        seed: Seed of the bootstrap.
        site: Where the components' writes were replaced, if not everywhere.
    """
    unit, rows = loss_unit(batch), []
    for part, lost in found.items():
        own = _beyond_rounding(lost / unit)
        rows.append(_line(part, own, paired_null(own), how, seed) | {"site": site})
    return head_table(rows, family=ANY_TARGET)


def _beyond_rounding(rises: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Rises of which those that another batch size can make count as none."""
    return np.where(np.abs(rises) <= _ROUNDING, 0.0, rises)


def _increases(
    model: HookedModel,
    batch: Batch,
    parts: Sequence[Component],
    corrupted: Tensor | None,
    rows: int,
    options: dict[str, Any],
) -> Iterator[tuple[Component, Float[Tensor, "row other"]]]:
    """Yield each component's loss increases with the targets of each row, for some rows at a
    time."""
    device = model_device(model)
    for start in range(0, len(batch), rows):
        source = batch.inputs[:rows] if corrupted is None else corrupted[start : start + rows]
        block = batch[start : start + rows]
        inputs, reference = block.inputs.to(device), source.to(device)
        pieces = ablated_by_rows(
            model, inputs, parts, reference=reference, scored=block.mask, **options
        )
        found: dict[Component, list[Tensor]] = {}
        for few, clean, outputs in pieces:
            some, whole = block[few], losses_with_targets(clean, block[few], block)
            if not _finite(whole):
                raise not_finite(model, inputs[few])
            for part, output in outputs:
                risen = losses_with_targets(output, some, block) - whole
                found.setdefault(part, []).append(risen)
        for part, risen_by_rows in found.items():
            yield part, torch.cat(risen_by_rows)


def _finite(values: Tensor | np.ndarray) -> bool:
    return bool(np.isfinite(np.asarray(values)).all())


def _check(batch: Batch, how: str, corrupted: Tensor | None, rows: int) -> None:
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


def _line(
    part: Component, increases: Float[np.ndarray, " row"], null: Null, how: str, seed: int
) -> dict[str, Any]:
    target = str(part.position) if part.kind == "position" else "output"
    return score_row(
        "loss_increase",
        float(increases.mean()),
        null,
        component=part.kind,
        layer=part.layer,
        head=part.head,
        method=how,
        target=target,
        interval=row_interval(increases, seed=seed),
    )
