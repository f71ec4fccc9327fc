"""The recipe of a language model: one TOML file, checked by name and line like every recipe.

    name, about, kind = "language"
    [corpus]     held_out, folder                     analyses.language.corpus
    [model]      vocabulary, context, width …         analyses.language.model
    [training]   learning_rate, cooldown, kept …      LanguageTraining
    [[stages]]   steps, rows, length, repeated …      Stage; one after another
    [expected]   metric = bound                       gap, induction, previous

Stages are the curriculum: short rows with many repeats first, because heads that look for an
earlier occurrence form in a fraction of the tokens there, then longer rows of mostly plain text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from analyses.language.model import GPT2Sizes
from prooflens.errors import ArgumentError, Problems
from prooflens.files import read_toml

__all__ = ["RECIPE", "LanguageRecipe", "LanguageTraining", "Stage", "read_language_recipe"]

RECIPE = Path(__file__).parent / "code-lm.toml"
"""Path of the recipe of the shipped language model."""

_MOST_BYTES, _MOST = 1 << 20, 1 << 40
_EXPECTED = ("gap", "induction", "previous")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Stage:
    """A part of the training with rows of one kind.

    Attributes:
        steps: Number of optimiser steps.
        rows: Rows a step.
        length: Tokens a row; where it is less than the model's context, rows begin at a position
            drawn anew at every step, so that all positions are trained.
        repeated: Share of rows of text that repeat a passage.
        shuffled: Share of rows that repeat a passage of tokens drawn by their frequency.

    Raises:
        ArgumentError: naming every option that is out of range.
    """

    steps: int
    rows: int
    length: int
    repeated: float = 0.0
    shuffled: float = 0.0

    def __post_init__(self) -> None:
        problems = Problems("stage")
        for name in ("steps", "rows"):
            value = getattr(self, name)
            problems.need(value > 0, name, "must be positive", value, "raise it")
        problems.need(self.length >= 32, "length", "must be at least 32", self.length, "raise it")
        for name in ("repeated", "shuffled"):
            value = getattr(self, name)
            problems.need(0 <= value <= 1, name, "must be a share from 0 to 1", value, "change it")
        both = self.repeated + self.shuffled
        rule = "and repeated must be at most 1 together"
        problems.need(both <= 1, "shuffled", rule, both, "lower one")
        problems.raise_if_any()


@dataclass(frozen=True)
class LanguageTraining:
    """Linear warm-up, constant rates, and a linear descent to 0 at the end.

    The matrices of attention and FFN are trained by Muon (momentum whose singular values are made
    equal), embeddings, norms and biases by AdamW. By AdamW alone the heads that look for the
    earlier occurrence had not formed after 12 million tokens; with Muon they form within 2.

    Attributes:
        learning_rate: AdamW's constant rate.
        matrix_rate: Muon's constant rate.
        weight_decay: Weight decay of the matrices; embeddings, norms and biases have none.
        betas: AdamW's β_1 and β_2.
        clip: Largest norm of the gradient; larger ones are scaled down to it.
        warmup: Steps of the warm-up.
        cooldown: Steps of the descent at the end of the last stage.
        kept: Steps after which the weights are kept beside the last ones.
        seed: Seed of weights and rows.

    Raises:
        ArgumentError: naming every option that is out of range.
    """

    learning_rate: float = 3e-3
    matrix_rate: float = 0.02
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    warmup: int = 100
    cooldown: int = 0
    kept: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("training")
        for name in ("learning_rate", "matrix_rate", "clip"):
            value = getattr(self, name)
            problems.need(value > 0, name, "must be positive", value, "raise it")
        for name in ("weight_decay", "warmup", "cooldown", "seed"):
            value = getattr(self, name)
            problems.need(value >= 0, name, "must not be negative", value, "raise it")
        good = all(step > 0 for step in self.kept)
        problems.need(good, "kept", "must be steps after the first", self.kept, "drop others")
        problems.raise_if_any()

    def share(self, step: int, steps: int) -> float:
        """Return the factor on the learning rates at a step, from 0 to 1.

        Args:
            step: The step, counted from 0.
            steps: The number of all steps.
        """
        up = min(1.0, (step + 1) / max(self.warmup, 1))
        down = min(1.0, (steps - step) / max(self.cooldown, 1)) if self.cooldown else 1.0
        return up * down


@dataclass(frozen=True)
class LanguageRecipe:
    """How a language model is trained, and what it must reach.

    Attributes:
        held_out: One file of so many is held out.
        folder: A folder of Python sources; empty for the interpreter's standard library.
        expected: Least values of ``gap`` (nats between the first and the second time a passage is
            read), ``induction`` and ``previous`` (see :mod:`analyses.language.measure`).
    """

    name: str
    about: str
    model: GPT2Sizes
    training: LanguageTraining
    stages: tuple[Stage, ...]
    held_out: int
    expected: Mapping[str, float]
    folder: str = ""

    @property
    def steps(self) -> int:
        """The number of steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    @property
    def tokens(self) -> int:
        """The number of tokens that are read in all stages together."""
        return self.tokens_until(self.steps)

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens that are read before a step, counted from 0."""
        stages = (self.stage(earlier) for earlier in range(step))
        return sum(stage.rows * stage.length for stage in stages)

    def stage(self, step: int) -> Stage:
        """The stage that a step, counted from 0, belongs to."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        return self.stages[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return the part of the recipe that determines the weights, as JSON data."""
        data = {name: getattr(self, name) for name in ("name", "held_out", "folder")}
        stages = [asdict(stage) for stage in self.stages]
        parts = {"model": asdict(self.model), "training": asdict(self.training)}
        return {**data, **parts, "stages": stages}

    @property
    def sha256(self) -> str:
        """The SHA-256 of :meth:`to_dict`."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def missed_bounds(self, metrics: Mapping[str, float]) -> list[str]:
        """Return a sentence for each expected bound that the metrics do not reach."""
        return [
            f"{name} is {metrics[name]:.3g}, expected at least {bound:g}"
            for name, bound in self.expected.items()
            if not metrics[name] >= bound
        ]


def read_language_recipe(path: Path) -> LanguageRecipe:
    """Read the recipe in a TOML file.

    Raises:
        ArgumentError: if it cannot be read, or naming everything in it that is unknown, missing or
            impossible.
    """
    data = read_toml(path, "recipe", most=_MOST_BYTES)[0]
    problems = Problems(f"recipe {path}")
    known = {"name", "about", "kind", "corpus", "model", "training", "stages", "expected"}
    for key in sorted(set(data) - known):
        problems.need(False, key, "is not a key of a language recipe", data[key], "remove it")
    for key in ("name", "about", "stages"):
        problems.need(bool(data.get(key)), key, "must be given", data.get(key), "add it")
    problems.raise_if_any()
    _check_table_types(data, problems)
    corpus, expected = data.get("corpus", {}), data.get("expected", {})
    for table, keys in ((corpus, ("held_out", "folder")), (expected, _EXPECTED)):
        for key in sorted(set(table) - set(keys)):
            problems.need(False, key, f"must be one of {', '.join(keys)}", table[key], "remove it")
    problems.raise_if_any()
    recipe = LanguageRecipe(
        data["name"],
        data["about"],
        _from_table(GPT2Sizes, data.get("model", {})),
        _from_table(LanguageTraining, data.get("training", {})),
        tuple(_from_table(Stage, stage) for stage in data["stages"]),
        int(corpus.get("held_out", 20)),
        expected,
        str(corpus.get("folder", "")),
    )
    _check_fit(recipe, problems)
    return recipe


def _from_table(kind: type[Made], table: Mapping[str, Any]) -> Made:
    """Make a dataclass from a TOML table; lists become tuples."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - known)
    if unknown:
        raise ArgumentError(
            f"{', '.join(unknown)} must be among {', '.join(sorted(known))}: remove or rename it"
        )
    problems = Problems(kind.__name__.lower())
    for field in fields(kind):  # type: ignore[arg-type]
        value = table.get(field.name, None if field.default is MISSING else field.default)
        problems.need(value is not None, field.name, "must be given", value, "add it")
        listed, whole = str(field.type).startswith("tuple"), "int" in str(field.type)
        good = isinstance(value, list | tuple) == listed
        numbers = value if isinstance(value, list | tuple) else [value]
        types = (int,) if whole else (int, float)
        good &= all(type(number) in types and abs(number) < _MOST for number in numbers)
        rule = f"must be {field.type}" + " without infinities" * (not whole)
        problems.need(value is None or good, field.name, rule, value, "write it as in TOML")
    problems.raise_if_any()
    return kind(**{k: tuple(v) if isinstance(v, Sequence) else v for k, v in table.items()})


def _check_table_types(data: Mapping[str, Any], problems: Problems) -> None:
    """Collect a problem for each value of the wrong type, before anything is built from the
    data."""
    tables = {key: data.get(key, {}) for key in ("corpus", "model", "training", "expected")}
    stages = data.get("stages")
    listed = stages if isinstance(stages, list) and stages else [None]
    for key, table in [*tables.items(), *(("stages", stage) for stage in listed)]:
        problems.need(isinstance(table, dict), key, "must be a table", table, "write [name]")
    for key in ("name", "about"):
        problems.need(
            isinstance(data.get(key), str), key, "must be text", data.get(key), "quote it"
        )
    problems.raise_if_any()
    held, bounds = tables["corpus"].get("held_out", 20), tables["expected"].values()
    problems.need(
        type(held) is int and 1 < held < _MOST, "held_out", "must be 2 or more", held, "20"
    )
    good = all(type(bound) in (int, float) for bound in bounds)
    problems.need(good, "expected", "must be numbers", list(bounds), "mend them")
    problems.raise_if_any()


def _check_fit(recipe: LanguageRecipe, problems: Problems) -> None:
    longest = max(stage.length for stage in recipe.stages)
    rule = f"must be at most the context {recipe.model.context}"
    problems.need(longest <= recipe.model.context, "length", rule, longest, "lower it")
    late = [step for step in recipe.training.kept if step >= recipe.steps]
    rule = f"must be before the last of {recipe.steps} steps"
    problems.need(not late, "kept", rule, late, "drop them")
    problems.raise_if_any()
