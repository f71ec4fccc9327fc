"""Do the roles that were found carry a model? Their components alone, and programs in their place.

    python -m analyses benchmark faithfulness [--only NAME] [--seed N] [--draw N] [--out FILE]

Roles are found on 256 rows of a shipped model's task, and numbers of programs fitted on 1,024; what
is kept (``pl.roles.explain``) is measured on other rows, and on rows of another length, where the
task has lengths and the model solves it there too. The least of both counts. A model is left out if
it does not solve its task. Models without attention (baselines, and a transformer without layers)
are not asked.

Which components are called needed hangs on the rows: ``--draw`` finds roles on others.

The shipped models were in sight when roles and their floors were chosen. With ``--seed`` each is
trained anew by its recipe with that seed, and nobody has seen it.

That confirmed roles carry a model does not say that each is needed, nor that its name tells all it
does; necessity is the roles' own test.

JSON keys: ``solved`` (how many models solve their task), ``faithful`` (how many of these keep 0.95
with the components that have confirmed roles, all else at its mean), ``surrogates_faithful`` (how
many do with programs in their place), ``median`` and ``surrogates_median`` of what is kept,
``random`` and ``others`` (means over models of what random components and programs of other roles
keep), ``whole`` (models of which every component has a role: with the components themselves nothing
is left to replace), ``missing`` (of each model that keeps less with programs, the component that
would mend most), ``unsolved``, ``rows``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from analyses.benchmarks.result import write_result
from prooflens.architectures import TransformerSpec
from prooflens.errors import ArgumentError, Problems
from prooflens.hooks import evaluating
from prooflens.interventions import loss_unit
from prooflens.machine import one_thread
from prooflens.roles import Explanation, explain, find_roles
from prooflens.run import Run
from prooflens.tasks import Batch, answers_of, memories_of, role_variables
from prooflens.trained import Recipe, train, zoo
from prooflens.trained import recipes as shipped_recipes

__all__ = ["Faithfulness", "faithfulness", "faithfulness_rows"]

_FOUND, _FITTED, _ROWS = 256, 1024, 128
"""How many rows roles are found on, programs are fitted on, and both are judged on."""
_ERROR = 0.05
"""Share of the targets' variance, or of wrong answers, up to which a model solves its task."""
_FAITHFUL = 0.95


@dataclass(frozen=True)
class Faithfulness:
    """What a model keeps of what its components do together.

    Attributes:
        model: Its name.
        length: The length of the rows, in positions.
        roles, programs, components: How many components have a confirmed role, how many of these a
            program, and how many there are.
        own: What is kept with the components that have roles.
        kept, low, high: What is kept with programs in their place, with a 95 % interval.
        others, random: What is kept with programs of other roles, and with random components; NaN
            where there are none.
        missing: The component that would mend most if it were itself in place of its program.
        error: The whole model's error: a share of the targets' variance, or of wrong answers.
    """

    model: str
    length: int
    roles: int
    programs: int
    components: int
    own: float
    kept: float
    low: float
    high: float
    others: float
    random: float
    missing: str
    error: float


def faithfulness_rows(
    recipe: Recipe, seed: int | None = None, draw: int = 0
) -> Iterator[Faithfulness]:
    """Yield what a shipped model keeps, on rows of its task and on rows of another length.

    Args:
        recipe: The model's.
        seed: Train another model by the recipe, with this seed.
        draw: Which draw of rows roles are found on.
    """
    name, task = recipe.name, recipe.task
    if seed is None:
        model: Any = zoo.load(name).model
    else:
        anew = replace(recipe, training=replace(recipe.training, seed=seed))
        model = train(anew, workers=1)[0].model
    told: dict[str, Any] = {"memories": memories_of(task), "answers": answers_of(task)}
    found_on = task.sample(_FOUND, seed=1 + 100 * draw)
    roles = find_roles(model, found_on, **told, sought=role_variables(task))
    fitted_on = task.sample(_FITTED, seed=4)
    for batch in (task.sample(_ROWS, seed=2), _other_length(task)):
        if batch is None:
            continue
        try:
            error = _error(model, batch)
        except ArgumentError:  # longer than the model's positions
            continue
        other = batch.inputs.shape[1] != found_on.inputs.shape[1]
        if not other or error <= _ERROR:
            found = explain(model, roles, fitted_on, judged=batch, **told)
            yield _row(name, batch, found, error)


def _row(name: str, batch: Batch, found: Explanation, error: float) -> Faithfulness:
    kept = found.kept
    return Faithfulness(
        name,
        int(batch.inputs.shape[1]),
        sum(bool(part.roles) for part in found.parts),
        sum(bool(part.program) for part in found.parts),
        len(found.parts),
        found.own.share,
        kept.share,
        kept.low,
        kept.high,
        found.others,
        found.random,
        found.missing,
        error,
    )


def _other_length(task: Any) -> Batch | None:
    """Rows of another length: longer strings of a language, shorter rows of other tasks."""
    if hasattr(task, "bins"):
        longest = max(high for _, high in task.bins)
        task = replace(task, bins=((longest + 1, 2 * longest),))
        longer: Batch = task.sample(_ROWS, seed=3)
        return longer
    if all(one.name != "length" for one in fields(task)):
        return None
    try:
        task = replace(task, length=3 * task.length // 4)
        shorter: Batch = task.sample(_ROWS, seed=3)
    except ArgumentError:  # the task has no such rows
        return None
    return shorter


@torch.no_grad()
def _error(model: Any, batch: Batch) -> float:
    """The share of the targets' variance that the whole model misses, or of wrong answers."""
    with evaluating(model):
        run = Run(model, batch)
        if batch.targets.is_floating_point():
            return float(run.by_row(run.value()).mean()) / loss_unit(batch)
        wrong = run.value(lambda output, targets: output.argmax(-1) != targets)
        return float(wrong.sum() / batch.mask.sum())


@one_thread()
def faithfulness(only: str = "", seed: int | None = None, draw: int = 0) -> dict[str, Any]:
    """Every shipped model of a task, with what its roles keep.

    Args:
        only: Models whose name has this in it.
        seed: Train other models by their recipes, with this seed.
        draw: Which draw of rows roles are found on.

    Raises:
        ArgumentError: if no shipped transformer has such a name, or the draw is negative.
    """
    started, console = time.perf_counter(), Console(stderr=True)
    recipes = [recipe for recipe in shipped_recipes() if only in recipe.name]
    asked = [one for one in recipes if isinstance(one.spec, TransformerSpec) and one.spec.heads]
    problems = Problems("faithfulness")
    problems.need(bool(asked), "only", "must be in a shipped model's name", only, "leave it out")
    problems.need(draw >= 0, "draw", "must be at least 0", draw, "count draws from 0")
    problems.raise_if_any()
    found: dict[str, list[Faithfulness]] = {}
    for one in track(asked, "models", console=console, disable=not console.is_terminal):
        found[one.name] = [*faithfulness_rows(one, seed, draw)]
    solved = {name: rows for name, rows in found.items() if rows[0].error <= _ERROR}
    own = {name: min(row.own for row in rows) for name, rows in solved.items()}
    kept = {name: min(row.kept for row in rows) for name, rows in solved.items()}
    rows = [row for some in solved.values() for row in some]
    return {
        "solved": len(solved),
        "faithful": sum(share >= _FAITHFUL for share in own.values()),
        "median": float(np.median([*own.values()] or [nan])),
        "surrogates_faithful": sum(share >= _FAITHFUL for share in kept.values()),
        "surrogates_median": float(np.median([*kept.values()] or [nan])),
        "random": _mean(row.random for row in rows),
        "others": _mean(row.others for row in rows),
        "whole": [name for name, some in solved.items() if some[0].roles == some[0].components],
        "missing": {
            name: min(solved[name], key=lambda row: row.kept).missing
            for name, share in kept.items()
            if share < _FAITHFUL
        },
        "unsolved": sorted({*found} - {*solved}),
        "rows": [vars(row) for some in found.values() for row in some],
        "seconds": time.perf_counter() - started,
    }


def _mean(values: Iterator[float]) -> float:
    finite = [one for one in values if isfinite(one)]
    return float(np.mean(finite)) if finite else nan


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="What models keep with their roles' programs.")
    parser.add_argument("--only", default="", help="Models whose name has this in it.")
    parser.add_argument("--seed", type=int, help="Train other models with this seed.")
    parser.add_argument("--draw", type=int, default=0, help="Draw of rows to find roles on.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_result(faithfulness(options.only, options.seed, options.draw), options.out)
