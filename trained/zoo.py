"""The shipped models: their checkpoints, tasks and metrics.

Checkpoints are in ``trained/checkpoints`` (safetensors and JSON, a few MB in all), their recipes in
``trained/recipes``. Language models are Hugging Face folders beside them (:func:`languages`), whose
training is not part of the package. All are read as package resources, so they work from an
installed wheel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from interp.errors import CheckpointError
from interp.models.checkpoint import load_checkpoint, read_metadata
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict
from trained.shipped_names import folder as folder
from trained.shipped_names import languages as languages
from trained.shipped_names import names as names

STAND_IN = "code-lm"
"""Name of the language model that :func:`stand_in` returns."""


@dataclass(frozen=True)
class Shipped:
    """A shipped model with the task it was trained on and its metrics on fresh rows.

    Attributes:
        name: The name that :func:`load` was given.
        model: The model, a transformer or a baseline, in evaluation mode.
        task: The task that it was trained on.
        metrics: The metrics on fresh rows of ``test`` if there is one, otherwise of ``task``.
        about: A description in words.
        test: Another task that it was tested on, e.g. longer rows or unseen symbols.
        claim: The id of the claim that it serves; empty for none.
    """

    name: str
    model: Any
    task: Task
    metrics: Mapping[str, float]
    about: str
    test: Task | None = None
    claim: str = ""


def stand_in() -> Path | None:
    """Return the folder of the language model that is used if GPT-2 is not available; None if it is
    not shipped.

    Results on it are reported as those of :data:`STAND_IN`, never as GPT-2's.
    """
    return folder(STAND_IN) if STAND_IN in languages() else None


def load(name: str) -> Shipped:
    """Load a shipped model by name.

    Raises:
        CheckpointError: if there is no such model (naming near ones), or it is damaged.
    """
    if name not in names():
        if Path(name).exists() or "/" in name:
            raise CheckpointError(
                f"{name!r} is no shipped model's name: for a folder call "
                "interp.load_checkpoint(path)"
            )
        near = get_close_matches(name, names(), cutoff=0.4) or names()
        raise CheckpointError(f"no shipped model {name!r}: there is {', '.join(near)}")
    metadata: dict[str, Any] = read_metadata(folder(name))
    model = load_checkpoint(folder(name))
    test = metadata.get("test")
    return Shipped(
        name,
        model,
        task_from_dict(metadata["task"]),
        metadata["metrics"],
        metadata["about"],
        None if test is None else task_from_dict(test),
        metadata.get("claim", ""),
    )
