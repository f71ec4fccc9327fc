"""How a model came to be: one TOML a model, refused by name when something in it is wrong.

    name, about
    [task]      kind and arguments                 interp.tasks.catalogue
    [spec]      the model's options                interp.models.spec
    [training]  steps, batch, learning rate …      Training
    [expected]  metric = bound                     what the shipped checkpoint must reach: a least
                                                   accuracy, a largest error or loss

The recipe's hash (SHA-256 of its content as canonical JSON) is stored with every checkpoint, so a
changed recipe does not pass for the one a model was trained by.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, Problems
from interp.models.spec import TransformerSpec
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict

__all__ = ["METRICS", "Recipe", "Training", "read_recipe"]

METRICS = ("accuracy", "error", "loss")


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
        for name, kind in self.__annotations__.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            good = whole or (kind == "float" and isinstance(value, float))
            problems.need(good, name, f"must be of type {kind}", value, "give a number")
        problems.raise_if_any()
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

    def missed(self, metrics: Mapping[str, float]) -> list[str]:
        """What the metrics fall short of, in words."""
        found = []
        for name, bound in self.expected.items():
            value, least = metrics[name], name == "accuracy"
            if not (value >= bound if least else value <= bound):
                side = "least" if least else "most"
                found.append(f"{name} is {value:.4g}, expected at {side} {bound:g}")
        return found

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
    _check_shape(data, problems)
    problems.raise_if_any()
    makers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "task": task_from_dict,
        "spec": TransformerSpec.from_dict,
        "training": lambda table: Training(**table),
    }
    made: dict[str, Any] = {}
    for name, make in makers.items():
        try:
            made[name] = make(data[name])
        except (ArgumentError, TypeError) as error:
            problems.found.append(f"[{name}] {error}")
    problems.raise_if_any()
    return Recipe(data["name"], data["about"], **made, expected=data.get("expected", {}))


def _check_shape(data: Mapping[str, Any], problems: Problems) -> None:
    """Tables and keys are the known ones; what is inside task and spec, their classes check."""
    need = problems.need
    kinds = {f.name: str if f.name in ("name", "about") else dict for f in fields(Recipe)}
    for key in sorted(set(data) - set(kinds)):
        need(False, key, "must be a known table", data[key], f"one of {', '.join(sorted(kinds))}")
    for key, kind in sorted(kinds.items()):
        value = data.get(key, {} if key == "expected" else None)
        rule = "must be text" if kind is str else "must be a table"
        need(isinstance(value, kind), key, f"must be given and {rule}", value, "write it so")
    training, expected = data.get("training"), data.get("expected", {})
    if isinstance(training, dict):
        known = {f.name for f in fields(Training)}
        for key in sorted(set(training) - known):
            need(False, f"training.{key}", "must be a known option", training[key], "remove it")
        need("steps" in training, "training.steps", "must be given", None, "add it")
    for key, value in expected.items() if isinstance(expected, dict) else ():
        good = key in METRICS and isinstance(value, int | float)
        rule = f"must be a number for one of {', '.join(METRICS)}"
        need(good, f"expected.{key}", rule, value, "accuracy is a least value, the others a most")
