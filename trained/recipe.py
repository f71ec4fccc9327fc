"""A recipe: one TOML file that says how a model is trained, checked by name and line.

    name, about
    claim       the claim that the model serves (optional)
    [task]      kind and arguments                 interp.tasks.catalogue
    [test]      another task for the metrics       (optional)
    [spec]      the model's options                interp.models.spec; kind = "mlp" …: baselines
    [training]  steps, batch, learning rate …      trained.run
    [expected]  metric = bound                     what the shipped checkpoint must reach: a lower
                                                   bound on accuracy or exact, an upper bound on
                                                   error or loss

The recipe's hash (SHA-256 of what determines the weights and metrics: task, test, spec and
training, as canonical JSON without options left at their defaults) is stored with every checkpoint,
so that a changed recipe is not taken for the one that the model was trained by. The hash does not
change if a default changes.

*Grids.* A grid is a recipe with one more table, which gives lists of values for its options:

    [grid]
    "training.seed" = [0, 1, 2]
    "spec.n_layers" = [1, 2]

It stands for every combination, named NAME-n_layers=1-seed=0 and so on (options sorted; of each
only the last part, with its table's name if two would be the same).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, CheckpointError, Problems
from interp.models.kinds import Spec, kind_of, spec_from_dict
from interp.reading import read_toml
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict
from trained.metrics import METRICS
from trained.run import Training, TrainingRun, check_spec

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([\w.-]+))\s*=""")


class RecipeLines:
    """The lines of a TOML file's tables and keys.

    Args:
        text: The text of a TOML file that can be parsed.
    """

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, str], int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header, key = _HEADER.match(line), _KEY.match(line)
            if header is not None:
                table = header[1].replace(" ", "")
                self._found.setdefault((table, ""), number)
            elif key is not None:
                name = next(part for part in key.groups() if part)
                self._found.setdefault((table, name), number)

    def of(self, table: str, key: str) -> str:
        """Return the line of a key (or of a grid's list for it), of its table, or the first, as
        ``line 12``.

        Args:
            table: The name of the table; ``""`` for keys above the first table.
            key: The key; with table ``""`` it may also be a table's name.
        """
        whole = f"{table}.{key}".strip(".")
        places = [(table, key), ("grid", whole), (whole, ""), (table, "")]
        return f"line {next((self._found[p] for p in places if p in self._found), 1)}"


_MOST_BYTES = 1 << 20
_LEAST = ("accuracy", "exact")
_TABLES = ("task", "test", "spec", "training", "expected")
_OPTIONAL: dict[str, Any] = {"claim": "", "test": None, "expected": {}}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: its name, task, options, training, and the metrics it must reach.

    Attributes:
        name: The name of the model.
        about: What the model is, in words.
        task: The task that it is trained on.
        spec: The spec of the model.
        training: The options of the training.
        expected: Metric → the bound that the shipped checkpoint must reach.
        test: The task on which metrics are measured; None for the training task.
        claim: The id of the claim that the model serves; empty for none.
    """

    name: str
    about: str
    task: Task
    spec: Spec
    training: Training
    expected: Mapping[str, float] = field(default_factory=dict)
    test: Task | None = None
    claim: str = ""

    @property
    def run(self) -> TrainingRun:
        """The training run of the recipe."""
        return TrainingRun(self.name, self.task, self.spec, self.training, self.test)

    def missed_bounds(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the bounds that some metrics miss, as sentences."""
        found = []
        for name, bound in self.expected.items():
            value, least = metrics[name], name in _LEAST
            if not (value >= bound if least else value <= bound):
                side = "least" if least else "most"
                found.append(f"{name} is {value:.4g}, expected at {side} {bound:g}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the data that determines weights and metrics, without options left at their
        defaults."""
        data = {
            "name": self.name,
            "task": _without_defaults(self.task, self.task.to_dict()),
            "spec": {"kind": kind_of(self.spec)}
            | _without_defaults(self.spec, self.spec.to_dict()),
            "training": _without_defaults(self.training, asdict(self.training)),
        }
        if self.test is not None:
            data["test"] = _without_defaults(self.test, self.test.to_dict())
        return data

    @property
    def sha256(self) -> str:
        """The SHA-256 of :meth:`to_dict`; comments, order, descriptions and bounds do not change
        it."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_recipe(path: str | Path) -> Recipe:
    """Read the recipe in a TOML file.

    Raises:
        ArgumentError: if it cannot be read, or naming everything in it that is unknown, missing
            or impossible, with its line.
    """
    text = read_text(path)
    return recipe_of(tomllib.loads(text), RecipeLines(text), f"recipe {path}")


def read_text(path: str | Path) -> str:
    """Return the text of a TOML file.

    Raises:
        ArgumentError: if it cannot be read or is not TOML, naming the shipped recipe that may be
            meant.
    """
    path = Path(path)
    if not os.path.lexists(path):
        shipped = Path("trained/recipes") / f"{path.name.removesuffix('.toml')}.toml"
        hint = f"; do you mean {shipped}?" if shipped.is_file() else ""
        raise ArgumentError(f"recipe {path} cannot be read: no such file{hint}")
    return read_toml(path, "recipe", most=_MOST_BYTES)[1]


def recipe_of(data: Mapping[str, Any], lines: RecipeLines, subject: str) -> Recipe:
    """Make a recipe from parsed TOML.

    Raises:
        ArgumentError: naming everything that is unknown, missing or impossible, with its line.
    """
    problems = Problems(subject)
    _check_shape(data, lines, problems)
    problems.raise_if_any()
    makers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "task": task_from_dict,
        "test": lambda table: None if table is None else task_from_dict(table),
        "spec": spec_from_dict,
        "training": Training.from_dict,
    }
    made: dict[str, Any] = {}
    for name, make in makers.items():
        with _lines_of_problems(problems, lines, name):
            made[name] = make(data.get(name))  # type: ignore[arg-type]
    problems.raise_if_any()
    for task in filter(None, (made["task"], made["test"])):
        with _lines_of_problems(problems, lines, "spec"):
            check_spec(task, made["spec"])
    problems.raise_if_any()
    rest = {key: data.get(key, _OPTIONAL[key]) for key in ("claim", "expected")}
    return Recipe(data["name"], data["about"], **made, **rest)


@contextmanager
def _lines_of_problems(problems: Problems, lines: RecipeLines, table: str) -> Iterator[None]:
    """Add the problems of errors raised inside the block, each with its line in the file."""
    try:
        yield
    except ArgumentError as error:
        for argument, sentence in error.problems or (("kind", str(error)),):
            problems.found.append(f"{lines.of(table, argument)}: [{table}] {sentence}")


def _check_shape(data: Mapping[str, Any], lines: RecipeLines, problems: Problems) -> None:
    """Check that tables and keys are known; what is inside them is checked by their classes."""
    kinds = {f.name: dict if f.name in _TABLES else str for f in fields(Recipe)}
    found = problems.found
    for key in sorted(set(data) - set(kinds)):
        found.append(f"{lines.of('', key)}: {key} must be one of {', '.join(sorted(kinds))}")
    for key, kind in sorted(kinds.items()):
        value = data.get(key, _OPTIONAL.get(key))
        if not (isinstance(value, kind) or (value is None and key in _OPTIONAL)):
            rule = "text" if kind is str else "a table"
            found.append(f"{lines.of('', key)}: {key} must be given and must be {rule}")
    expected = data.get("expected", {})
    for key, value in expected.items() if isinstance(expected, dict) else ():
        if key not in METRICS or isinstance(value, bool) or not isinstance(value, int | float):
            rule = f"must be a number for one of {', '.join(METRICS)}, got {value!r}"
            found.append(f"{lines.of('expected', key)}: expected.{key} {rule}")


def _without_defaults(thing: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``data`` of a dataclass without the fields that have their default values."""
    defaults = {f.name: f.default for f in fields(thing) if f.default is not MISSING}
    return {k: v for k, v in data.items() if k not in defaults or v != defaults[k]}


_MOST_RUNS = 10_000

_GRID_TABLES = ("task", "test", "spec", "training")


def read_plan(path: str | Path) -> list[Recipe]:
    """Read the recipe in a TOML file, or all the recipes of a grid.

    Raises:
        ArgumentError: if it cannot be read, or naming everything in it that is unknown, missing or
            impossible, with its line.
    """
    text = read_text(path)
    data, lines, subject = tomllib.loads(text), RecipeLines(text), f"recipe {path}"
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
    """Return each recipe once per seed, named NAME-seed=0 and so on.

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


def _check_grid(grid: Any, data: Mapping[str, Any], lines: RecipeLines, subject: str) -> None:
    problems = Problems(subject)
    if not isinstance(grid, dict) or not grid:
        raise ArgumentError(f"{subject}: {lines.of('', 'grid')}: grid must be a table of lists")
    for option, values in grid.items():
        table, dot, _ = option.partition(".")
        good = bool(dot) and table in _GRID_TABLES and isinstance(data.get(table), dict)
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


def recipes() -> list[Recipe]:
    """Return the shipped recipes, sorted by name."""
    with as_file(files("trained") / "recipes") as there:
        return [read_recipe(file) for file in sorted(there.glob("*.toml"))]


def recipe_file(name: str | Path) -> Path:
    """Return the recipe file of a shipped model's name; any other path is returned unchanged.

    Raises:
        CheckpointError: for a name that is nearly a shipped one's.
    """
    there = Path(str(files("trained"))) / "recipes"
    plain = Path(name).name == str(name) and not Path(name).suffix
    shipped = there / f"{name}.toml"
    if not plain or Path(name).exists():
        return Path(name)
    near = get_close_matches(str(name), [file.stem for file in there.glob("*.toml")], 1)
    if near and not shipped.is_file():
        raise CheckpointError(f"no recipe {str(name)!r}: did you mean the shipped {near[0]}?")
    return shipped if shipped.is_file() else Path(name)
