"""Train one model; the same run on the same machine gives the same weights.

The loss is the mean squared error over scored positions (cross-entropy where targets are token
ids). Fresh rows are drawn from seeds that follow from the run's, so nothing is trained on twice and
no row of the evaluation is seen.

:func:`save_fit` saves the trained model of a recipe as a checkpoint that says how it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.progress import track
from torch import Tensor

from interp.errors import CheckpointError
from interp.models.checkpoint import read_metadata, save_checkpoint
from interp.output import check_output
from interp.threads import one_thread
from trained.ensemble import Ensemble, training_set
from trained.metrics import evaluate, scores
from trained.recipe import Recipe
from trained.run import TrainingRun, check_runs


def check_places(places: Sequence[Path], *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise an error for output folders that may not be written, before any training.

    Args:
        places: The folders.
        overwrite: Whether existing folders may be replaced.
        inputs: Files that must not be inside a folder that is replaced.

    Raises:
        OutputError: for the first folder that exists and may not be replaced, contains one of
            ``inputs``, or cannot be written.
    """
    for place in places:
        check_output(place, overwrite=overwrite, marker="model.json", inputs=inputs)


def is_made_by(place: Path, recipe: Recipe) -> bool:
    """Return whether a folder has a checkpoint that was trained by exactly this recipe.

    It is recognised by the SHA-256 hash of the recipe in the checkpoint's metadata.
    """
    try:
        return read_metadata(place).get("recipe_sha256") == recipe.sha256
    except CheckpointError:
        return False


def save_fit(recipe: Recipe, fit: Fit, place: Path, *, overwrite: bool) -> bool:
    """Save a trained model as a checkpoint; return False, saving nothing, if training diverged.

    Raises:
        OutputError: if the folder may not be replaced, or cannot be written.
    """
    if fit.diverged:
        return False
    about = {
        "name": recipe.name,
        "about": recipe.about,
        "claim": recipe.claim,
        "task": recipe.task.to_dict(),
        "test": recipe.test.to_dict() if recipe.test is not None else None,
        "training": asdict(recipe.training),
        "recipe_sha256": recipe.sha256,
        "metrics": {name: value for name, value in fit.metrics.items() if isfinite(value)},
    }
    save_checkpoint(fit.model, place, about=about, overwrite=overwrite)
    return True


@dataclass(frozen=True)
class Fit:
    """A trained model with its metrics and its loss during training.

    Attributes:
        model: The model in evaluation mode, on the CPU.
        metrics: The metrics on fresh rows of the test task (of the training task if there is no
            test task); with the prefix ``train_`` those on the rows it was trained on, if these are
            others.
        history: Columns ``step`` (from 1) and ``loss`` (of that step's batch, before the step).
        snapshots: Step → the weights after it, as a state dict.
    """

    model: Any
    metrics: dict[str, float]
    history: pd.DataFrame
    snapshots: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Whether training ended because the loss became infinite or NaN; the weights are then
        those of before that step's update."""
        return not bool(np.isfinite(self.history["loss"]).all())


@one_thread()
def fit(recipe: Recipe | TrainingRun, *, device: str = "cpu", progress: bool = False) -> Fit:
    """Train one model from its seed.

    Args:
        recipe: What to train and how: a recipe or a run.
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
        progress: Whether to show a progress bar on the terminal.

    Raises:
        ArgumentError: for a spec that does not fit its task's rows.
    """
    run = recipe if isinstance(recipe, TrainingRun) else recipe.run
    check_runs([run])
    ensemble = Ensemble([run], device=device)
    steps = ensemble.run()
    for _ in track(steps, run.name, total=ensemble.steps, disable=not progress):
        pass
    return fits_of(ensemble)[0]


def fits_of(ensemble: Ensemble) -> list[Fit]:
    """Return the trained models of an ensemble with their metrics, member by member."""
    found = []
    losses = torch.stack(ensemble.state.losses).cpu()
    for member, (run, model) in enumerate(zip(ensemble.runs, ensemble.models(), strict=True)):
        steps = int(ensemble.state.taken[member])
        history = pd.DataFrame(
            {"step": range(1, steps + 1), "loss": losses[:steps, member].numpy()}
        )
        kept = {
            step: ensemble.model_of(member, weights).state_dict()
            for step, weights in ensemble.state.snapshots.items()
            if step <= steps
        }
        found.append(Fit(model, run_metrics(run, model), history, kept))
    return found


def run_metrics(run: TrainingRun, model: Any) -> dict[str, float]:
    """Return the metrics of a run's model; see :class:`Fit`."""
    metrics = evaluate(model, run.test if run.test is not None else run.task)
    if run.training.rows:
        trained_on = scores(model, training_set(run.task, run.training))
    elif run.test is not None:
        trained_on = evaluate(model, run.task)
    else:
        return metrics
    return metrics | {f"train_{name}": value for name, value in trained_on.items()}
