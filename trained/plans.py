"""Read what a file asks to be trained: one recipe, or a grid of them.

A grid is a recipe with one more table, which gives lists of values for its options:

    [grid]
    "training.seed" = [0, 1, 2]
    "spec.n_layers" = [1, 2]

It stands for every combination, named NAME-n_layers=1-seed=0 and so on (options sorted, the last
part of each, and its table's too where two would be the same).
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, Problems
from trained.recipe import Lines, Recipe, read_text, recipe_of

__all__ = ["read_plan", "with_seeds"]

_MOST_RUNS = 10_000

_TABLES = ("task", "test", "spec", "training")


def read_plan(path: str | Path) -> list[Recipe]:
    """Read the recipe in a TOML file, or all the recipes of a grid.

    Raises:
        ArgumentError: if it cannot be read, or naming everything in it that is unknown, missing or
            impossible, with its line.
    """
    text = read_text(path)
    data, lines, subject = tomllib.loads(text), Lines(text), f"recipe {path}"
    if "grid" not in data:
        return [recipe_of(data, lines, subject)]
    grid = data.pop("grid")
    _check_grid(grid, data, lines, subject)
    count = math.prod(len(values) for values in grid.values())
    if count > _MOST_RUNS:
        raise ArgumentError(
            f"{subject}: {lines.of('', 'grid')}: grid must be of at most {_MOST_RUNS:,} "
            f"combinations, got {count:,}: split it"
        )
    options = sorted(grid)
    recipes = []
    for values in product(*(grid[option] for option in options)):
        changed = deepcopy(data)
        for option, value in zip(options, values, strict=True):
            table, key = option.split(".", 1)
            changed[table][key] = value
        changed["name"] = "-".join([str(data.get("name", "")), *_words(options, values)])
        recipes.append(recipe_of(changed, lines, f"{subject}, {changed['name']}"))
    return recipes


def with_seeds(recipes: Sequence[Recipe], seeds: Sequence[int]) -> list[Recipe]:
    """Each recipe once per seed, named NAME-seed=0 and so on.

    Raises:
        ArgumentError: for more than ten thousand trainings.
    """
    count = len(recipes) * len(seeds)
    if count > _MOST_RUNS:
        raise ArgumentError(
            f"train: --seeds must make at most {_MOST_RUNS:,} trainings, got {count:,}: split them"
        )
    return [
        replace(
            recipe,
            name=f"{recipe.name}-seed={seed}",
            training=replace(recipe.training, seed=seed),
        )
        for recipe in recipes
        for seed in seeds
    ]


def _check_grid(grid: Any, data: Mapping[str, Any], lines: Lines, subject: str) -> None:
    problems = Problems(subject)
    if not isinstance(grid, dict) or not grid:
        raise ArgumentError(f"{subject}: {lines.of('', 'grid')}: grid must be a table of lists")
    for option, values in grid.items():
        table, dot, _ = option.partition(".")
        good = bool(dot) and table in _TABLES and isinstance(data.get(table), dict)
        told = f"{lines.of('grid', option)}: grid.{option}"
        if not good:
            problems.found.append(f'{told} must be quoted and name an option, e.g. "training.seed"')
        if not isinstance(values, list) or not values:
            problems.found.append(f"{told} must be a list of values, got {values!r}")
        elif len({json.dumps(value) for value in values}) < len(values):
            problems.found.append(f"{told} must not repeat a value, got {values!r}")
    problems.raise_if_any()


def _words(options: Sequence[str], values: Sequence[Any]) -> list[str]:
    last = [option.rpartition(".")[2] for option in options]
    words = [o if last.count(w) > 1 else w for o, w in zip(options, last, strict=True)]
    return [
        f"{word}={re.sub(r'[^A-Za-z0-9.+_-]+', '_', json.dumps(value)).strip('_')}"
        for word, value in zip(words, values, strict=True)
    ]
