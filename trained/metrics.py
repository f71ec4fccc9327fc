"""Metrics of a model on rows that are used in no training.

    loss      mean over scored positions: squared error, or cross-entropy for token ids
    error     loss divided by that of the trivial predictor, which always outputs the mean target
              (or the targets' frequencies); NaN if that is never wrong
    accuracy  share of scored positions with the right sign, or the right token on top
    exact     share of rows in which every scored position is right

For real targets accuracy depends on the sign alone: use ``error`` for regressions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from interp.tasks.base import Batch, Task

METRICS = ("accuracy", "error", "exact", "loss")
EVALUATION_SEED = 2**63 - 1
_ROWS = 1024
_POSITIONS = 2**13  # of one forward pass: larger ones leave the cache


@torch.no_grad()
def evaluate(
    model: Any, task: Task, *, rows: int = _ROWS, seed: int = EVALUATION_SEED
) -> dict[str, float]:
    """Measure a model on rows of a task, on the device where it is.

    Args:
        model: A function ``model(inputs) -> [batch, pos, d_out]``.
        task: The task from which the rows are drawn.
        rows: How many rows are drawn.
        seed: Seed of the rows; the default is one that no training uses.

    Returns:
        ``loss``, ``error``, ``accuracy`` and ``exact``, as the module defines them.
    """
    return scores(model, task.sample(rows, seed=seed))


@torch.no_grad()
def scores(model: Any, batch: Batch) -> dict[str, float]:
    """Return the metrics on given rows; see :func:`evaluate`."""
    device = next(model.parameters()).device
    size = max(1, _POSITIONS // max(batch.inputs.shape[1], 1))
    parts = [model(part.to(device)).float().cpu() for part in torch.split(batch.inputs, size)]
    output, mask = torch.cat(parts), batch.mask
    loss = float(loss_of(output, batch).mean())
    scored = batch.targets[mask]
    if batch.targets.is_floating_point():
        trivial = float((scored - scored.mean(0)).square().mean())
        right = (output.sign() == batch.targets.sign()).all(dim=-1)
        accuracy = float((output[mask].sign() == scored.sign()).float().mean())
    else:
        share = torch.bincount(scored.flatten()).float() / max(len(scored), 1)
        trivial = float(torch.special.entr(share).sum())
        right = output.argmax(-1) == batch.targets
        accuracy = float(right[mask].float().mean())
    exact = float((right | ~mask).all(dim=-1)[mask.any(dim=-1)].float().mean())
    error = loss / trivial if trivial > 0 else float("nan")
    return {"loss": loss, "error": error, "accuracy": accuracy, "exact": exact}


def loss_of(output: Tensor, batch: Batch) -> Tensor:
    """Return the loss at each scored position: squared error, or cross-entropy for token ids."""
    if batch.targets.is_floating_point():
        return (output - batch.targets.to(output.dtype))[batch.mask].square().mean(-1)
    return F.cross_entropy(output[batch.mask], batch.targets[batch.mask], reduction="none")


def mean_loss(output: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of :func:`loss_of` for each model of a stack.

    Args:
        output: The models' outputs, ``[model, batch, pos, d_out]``.
        targets: The targets, ``[model, batch, pos, d_out]`` or ``[model, batch, pos]``.
        mask: True at scored positions, ``[model, batch, pos]``; the targets' values elsewhere do
            not matter, not even NaN.

    Returns:
        One mean per model, ``[model]``; NaN for a model without a scored position.
    """
    if targets.is_floating_point():
        known = torch.where(mask[..., None], targets.to(output.dtype), 0.0)
        losses = (output - known).square().mean(-1)
    else:
        known = torch.where(mask, targets, 0)
        losses = -output.log_softmax(-1).gather(-1, known[..., None])[..., 0]
    return (losses * mask).sum((-2, -1)) / mask.sum((-2, -1))
