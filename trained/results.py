"""Save what the trainer made of a recipe: a checkpoint that says how it was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from interp.errors import CheckpointError
from interp.models.checkpoint import read_metadata, save_checkpoint
from interp.output import check_output
from trained.fit import Fit
from trained.recipe import Recipe

__all__ = ["check_places", "made_by", "save_fit"]


def check_places(places: Sequence[Path], *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuse folders that may not be written, before any training.

    Raises:
        OutputError: for the first that exists and may not be replaced, holds one of ``inputs``, or
            cannot be written.
    """
    for place in places:
        check_output(place, overwrite=overwrite, marker="model.json", inputs=inputs)


def made_by(place: Path, recipe: Recipe) -> bool:
    """Whether a folder holds the checkpoint that a recipe makes."""
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
