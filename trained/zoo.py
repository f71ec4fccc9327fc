"""The shipped models: ``load("name")`` gives a model, its task and what it reached.

Checkpoints lie in ``trained/checkpoints`` (safetensors and JSON, a few MB in all), their recipes in
``trained/recipes``. They are read as package resources, so they work from an installed wheel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import as_file, files
from typing import Any

from interp.errors import CheckpointError
from interp.models.checkpoint import load_checkpoint, read_metadata
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict

__all__ = ["Shipped", "load", "names"]


@dataclass(frozen=True)
class Shipped:
    """A shipped model with the task it was trained on and its metrics on fresh rows."""

    name: str
    model: SequenceTransformer
    task: Task
    metrics: Mapping[str, float]
    about: str


def names() -> list[str]:
    """The shipped models' names, sorted."""
    folder = files("trained") / "checkpoints"
    return sorted(entry.name for entry in folder.iterdir() if (entry / "model.json").is_file())


def load(name: str) -> Shipped:
    """A shipped model by name.

    Raises:
        CheckpointError: if there is no such model (naming near ones), or it is damaged.
    """
    if name not in names():
        near = get_close_matches(name, names(), cutoff=0.4) or names()
        raise CheckpointError(f"no shipped model {name!r}: there is {', '.join(near)}")
    with as_file(files("trained") / "checkpoints" / name) as folder:
        metadata: dict[str, Any] = read_metadata(folder)
        model = load_checkpoint(folder)
    task = task_from_dict(metadata["task"])
    return Shipped(name, model, task, metadata["metrics"], metadata["about"])
