"""How a model came to be: one TOML a model, refused by name when something in it is wrong.

    name, about
    [task]      kind and arguments                 interp.tasks.catalogue
    [spec]      the model's options                interp.models.spec
    [training]  steps, batch, learning rate …      Training
    [expected]  metric = least value               what the shipped checkpoint must reach

The recipe's hash (SHA-256 of its content as canonical JSON) is stored with every checkpoint, so a
changed recipe does not pass for the one a model was trained by.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, Problems
from interp.models.spec import TransformerSpec
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict

__all__ = ["Recipe", "Training", "read_recipe"]


@dataclass(frozen=True)
class Training:
    """AdamW with linear warm-up and cosine decay on fresh rows at every step.

    Attributes:
        steps: Optimiser steps.
        batch: Rows a step.
        learning_rate: Peak learning rate.
        weight_decay: Of all weights but those of the score terms.
        terms_learning_rate: The score terms' (lag tables, slopes …) learning rate as a multiple
            of the others'; their weights are scalars that must travel far.
        warmup: Steps of linear warm-up.
        clip: Largest gradient norm.
        seed: Of the initial weights and of the rows.
    """

    steps: int
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    terms_learning_rate: float = 1.0
    warmup: int = 50
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("training")
        for name in ("steps", "batch", "learning_rate", "terms_learning_rate", "clip"):
            value = getattr(self, name)
            problems.need(value > 0, name, "must be positive", value, "raise it")
        for name in ("weight_decay", "warmup", "seed"):
            value = getattr(self, name)
            problems.need(value >= 0, name, "must not be negative", value, "raise it")
        problems.raise_if_any()


@dataclass(frozen=True)
class Recipe:
    """A model's name, task, options, training, and the metrics it must reach."""

    name: str
    about: str
    task: Task
    spec: TransformerSpec
    training: Training
    expected: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON data."""
        return {
            "name": self.name,
            "about": self.about,
            "task": self.task.to_dict(),
            "spec": self.spec.to_dict(),
            "training": asdict(self.training),
            "expected": dict(self.expected),
        }

    @property
    def sha256(self) -> str:
        """Of the recipe's content; comments and the order of keys do not matter."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_recipe(path: str | Path) -> Recipe:
    """The recipe in a TOML file.

    Raises:
        ArgumentError: if it cannot be read, or naming everything in it that is unknown, missing
            or impossible.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"recipe {path} cannot be read: {error}") from error
    problems = Problems(f"recipe {path}")
    known = {f.name for f in fields(Recipe)}
    for key in sorted(set(data) - known):
        problems.need(False, key, "must be a known table", data[key], f"of {sorted(known)}")
    for key in sorted(known - {"expected"} - set(data)):
        problems.need(False, key, "must be given", None, "add it")
    for key in sorted(set(data.get("training", {})) - {f.name for f in fields(Training)}):
        value = data["training"][key]
        problems.need(False, f"training.{key}", "must be a known option", value, "remove it")
    steps = "steps" in data.get("training", {})
    problems.need(steps, "training.steps", "must be given", None, "add it")
    problems.raise_if_any()
    try:
        return Recipe(
            name=data["name"],
            about=data["about"],
            task=task_from_dict(data["task"]),
            spec=TransformerSpec.from_dict(data["spec"]),
            training=Training(**data["training"]),
            expected=data.get("expected", {}),
        )
    except ArgumentError as error:
        raise ArgumentError(f"recipe {path}: {error}") from error
