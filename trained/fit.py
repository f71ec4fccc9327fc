"""Training one model by its recipe: same recipe, same machine, same weights.

The loss is the mean squared error over scored positions (cross-entropy where targets are token
ids). Rows are drawn fresh at every step from a seed that follows from the recipe's, so nothing is
ever trained on twice and no row of the evaluation is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F  # noqa: N812
from rich.progress import track
from torch import Tensor

from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch, Task
from trained.recipe import Recipe, Training
from trained.threads import one_thread

__all__ = ["Fit", "evaluate", "fit", "loss_of"]

_EVALUATION_SEED = 2**63 - 1
_ROWS = 1024


@dataclass(frozen=True)
class Fit:
    """A trained model, its metrics on fresh rows, and the loss along the way."""

    model: SequenceTransformer
    metrics: dict[str, float]
    history: pd.DataFrame


@one_thread()
def fit(recipe: Recipe, *, progress: bool = False) -> Fit:
    """Train the recipe's model from its seed.

    Args:
        recipe: What to train and how.
        progress: Show a bar on the terminal.
    """
    training = recipe.training
    model = SequenceTransformer(recipe.spec, seed=training.seed)
    model.train()
    optimizer = torch.optim.AdamW(_groups(model, training), lr=training.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, training))
    losses = []
    steps = track(range(training.steps), recipe.name, disable=not progress)
    for step in steps:
        batch = recipe.task.sample(training.batch, seed=_row_seed(training.seed, step))
        loss = loss_of(model(batch.inputs), batch).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.eval()
    history = pd.DataFrame({"step": range(training.steps), "loss": losses})
    return Fit(model, evaluate(model, recipe.task), history)


@torch.no_grad()
def evaluate(model: SequenceTransformer, task: Task, *, rows: int = _ROWS) -> dict[str, float]:
    """Metrics on rows that no training draws.

    Returns:
        ``loss`` (mean over scored positions), ``error`` (loss over the trivial predictor's, which
        always gives the mean target; NaN where that is never wrong) and ``accuracy`` (sign of
        the output, or the top token).
    """
    batch = task.sample(rows, seed=_EVALUATION_SEED)
    output = model(batch.inputs).float()
    loss = float(loss_of(output, batch).mean())
    if batch.targets.is_floating_point():
        scored = batch.targets[batch.mask]
        trivial = float((scored - scored.mean(0)).square().mean())
        right = output[batch.mask].sign() == scored.sign()
    else:
        scored = batch.targets[batch.mask]
        share = torch.bincount(scored).float() / len(scored)
        trivial = float(torch.special.entr(share).sum())
        right = output[batch.mask].argmax(-1) == scored
    error = loss / trivial if trivial > 0 else float("nan")
    return {"loss": loss, "error": error, "accuracy": float(right.float().mean())}


def loss_of(output: Tensor, batch: Batch) -> Tensor:
    """Loss at each scored position: squared error, or cross-entropy for token targets."""
    if batch.targets.is_floating_point():
        return (output - batch.targets.to(output.dtype))[batch.mask].square().mean(-1)
    return F.cross_entropy(output[batch.mask], batch.targets[batch.mask], reduction="none")


def _groups(model: SequenceTransformer, training: Training) -> Iterator[dict[str, object]]:
    """Score terms without weight decay and at their own rate; everything else."""
    named = list(model.named_parameters())
    rate = training.learning_rate
    terms = [p for name, p in named if ".terms." in name]
    others = [p for name, p in named if ".terms." not in name]
    yield {"params": others, "weight_decay": training.weight_decay}
    yield {"params": terms, "weight_decay": 0.0, "lr": rate * training.terms_learning_rate}


def _rate(step: int, training: Training) -> float:
    warm = min(1.0, (step + 1) / max(training.warmup, 1))
    return warm * 0.5 * (1 + cos(pi * step / training.steps))


def _row_seed(seed: int, step: int) -> int:
    """A seed of its own for every (seed, step); the evaluation's is of another kind."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)
