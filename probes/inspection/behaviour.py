"""What an inspection runs a model for: stored activations, and how well it does on every trial.

    stores        attention patterns and what heads write, on repeated tokens, their shuffled
                  control and text
    performance   the loss in nats a token and the share of right tokens, compared with the control

Tables are sealed into the store of the repeated tokens, and read back from it when an inspection is
resumed. A low loss says that the model does the task, not how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from interp.hooks.transformer_lens_adapter import HookedModel
from interp.run import Run
from interp.stats.p_values import from_draws
from interp.store import ActivationStore, extract
from probes.roles.looking import looked_at
from probes.roles.trials import Trial

__all__ = [
    "Performance",
    "performance",
    "sealed",
    "stored_rows",
]

_BATCH = 32


@dataclass(frozen=True)
class Performance:
    """How well the model does on a trial.

    Attributes:
        trial: The name of the trial.
        loss: Mean over rows of the loss at scored positions, in nats a token.
        control: The same on the control's rows; NaN where there is none.
        accuracy: Share of scored positions with the right token on top.
        p: Of a loss that far below the control's, by exchanging rows; NaN without a control.
    """

    trial: str
    loss: float
    control: float
    accuracy: float
    p: float


def stored_rows(
    model: HookedModel, trial: Trial, folder: Path, *, resume: bool
) -> dict[str, ActivationStore]:
    """Extract the activations that measurements read into stores; with ``resume`` only those
    missing.

    Returns:
        ``repeated`` and ``shuffled``, or ``text``, or ``rows``.
    """
    batches = {trial.name: trial.batch}
    if trial.control is not None:
        batches["shuffled"] = trial.control
    hooks = looked_at(model, behaviour=True)
    return {
        name: extract(
            model,
            batch,
            hooks,
            folder / name,
            batch=_BATCH,
            resume=resume and (folder / name).exists(),
        )
        for name, batch in batches.items()
    }


def performance(
    run: Run, name: str, control: Run | None = None, *, draws: int = 10_000
) -> Performance:
    """The loss and accuracy on a trial's rows, compared with its control.

    Args:
        run: The model on the trial's rows.
        name: The trial's.
        control: The same model on the control's rows, if it has one.
        draws: Permutations of rows between the two.
    """
    losses, other, p = run.by_row(run.value()), float("nan"), float("nan")
    if control is not None:
        without = control.by_row(control.value())
        other = float(without.mean())
        pooled = torch.cat((losses, without)).numpy()
        rng, n = np.random.default_rng(0), len(losses)
        found = _gap(np.stack([rng.permutation(pooled) for _ in range(draws)]), n)
        p = from_draws(float(_gap(pooled, n)), found).p
    right = float(run.value(_right).sum()) / max(int(run.batch.mask.sum()), 1)
    return Performance(name, float(losses.mean()), other, right, p)


def _right(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Whether the right token has the largest logit."""
    return (output.argmax(-1) == targets).double()


def _gap(losses: NDArray[np.floating], n: int) -> NDArray[np.floating]:
    """How much higher the mean is after the first ``n`` of the last axis."""
    return np.asarray(losses[..., n:].mean(-1) - losses[..., :n].mean(-1))


def sealed(
    store: ActivationStore, name: str, provenance: dict[str, Any], make: Callable[[], pd.DataFrame]
) -> pd.DataFrame:
    """The stored table of that name if it was made in the same way; else it is made and stored."""
    if name in store.measurements and store.provenance(name) == provenance:
        return store.measurement(name)
    table = make()
    store.write_measurement(name, table, provenance, overwrite=True)
    return table
