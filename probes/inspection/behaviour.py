"""How well a model does on rows, compared with a control and with a constant answer.

A low loss says that the model does the task, not how. A model that does no better than a constant
answer does not do the task on these rows; if answers are few, no loss under ablation counts as a
cause there (:mod:`probes.roles.ability`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from interp.interventions.ablation_effects import loss_unit
from interp.run import Run
from interp.stats.p_values import from_draws
from interp.tasks.base import Batch
from probes.roles.ability import does_better


@dataclass(frozen=True)
class Performance:
    """How well the model does on a trial.

    Attributes:
        trial: The name of the trial.
        loss: The mean over rows of the loss at scored positions, in nats per token or as a share of
            the target's variance.
        control: The same on the control's rows; NaN if there is no control.
        accuracy: The share of scored positions at which the right token has the largest logit, or a
            real output the right sign.
        p: The p-value for the loss being that far below the control's, by a permutation test over
            rows; NaN without a control.
        chance: The loss of the best constant answer: the entropy of the targets in nats, or 1
            (their variance) for real targets.
        guess: The accuracy of that answer.
        worst: The largest absolute error of real outputs; NaN for tokens.
        able: Whether the model does better than a constant answer
            (:func:`probes.roles.ability.does_better`).
    """

    trial: str
    loss: float
    control: float
    accuracy: float
    p: float
    chance: float
    guess: float
    worst: float
    able: bool


def performance(
    run: Run, name: str, control: Run | None = None, *, draws: int = 10_000
) -> Performance:
    """Measure the loss and accuracy on a trial's rows, compared with its control.

    Args:
        run: The model on the trial's rows.
        name: The name of the trial.
        control: The same model on the control's rows, if there is a control.
        draws: The number of permutations of rows between the two.
    """
    unit = loss_unit(run.batch)
    losses, other, p = run.by_row(run.value()) / unit, float("nan"), float("nan")
    if control is not None:
        without = control.by_row(control.value()) / unit
        other = float(without.mean())
        pooled = torch.cat((losses, without)).numpy()
        rng, n = np.random.default_rng(0), len(losses)
        found = _gap(np.stack([rng.permutation(pooled) for _ in range(draws)]), n)
        p = from_draws(float(_gap(pooled, n)), found).p
    right = float(run.value(_right).sum()) / max(int(run.batch.mask.sum()), 1)
    constant, able = _constant(run.batch), does_better(run)
    return Performance(name, float(losses.mean()), other, right, p, *constant, _worst(run), able)


def _constant(batch: Batch) -> tuple[float, float]:
    """Return loss and accuracy of the best constant answer."""
    targets = batch.targets[batch.mask]
    if targets.is_floating_point():
        signs = (targets.sign() > 0).double().mean()
        return 1.0, float(torch.maximum(signs, 1 - signs))
    share = torch.bincount(targets.flatten().long()).double() / max(targets.numel(), 1)
    known = share[share > 0]
    return float(-(known * known.log()).sum()), float(share.max())


def _worst(run: Run) -> float:
    """Return the largest absolute error of real outputs; NaN for tokens."""
    if not run.batch.targets.is_floating_point():
        return float("nan")
    return max(
        float((output.double().cpu() - places.targets.double()).abs().max())
        for places, output in run.outputs()
    )


def _right(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return 1 where the right token has the largest logit, else 0; for real outputs, the share
    with the right sign."""
    if targets.is_floating_point():
        return (output.sign() == targets.sign()).double().flatten(1).mean(1)
    return (output.argmax(-1) == targets).double()


def _gap(losses: NDArray[np.floating], n: int) -> NDArray[np.floating]:
    """Return how much larger the mean after the first ``n`` entries of the last axis is than the
    mean over these."""
    return np.asarray(losses[..., n:].mean(-1) - losses[..., :n].mean(-1))
