"""Do the roles that were found carry a model? What is left when only they are kept.

    python -m analyses benchmark faithfulness [--only NAME] [--out FILE]

Roles are found on some rows of a shipped model's task. On other rows every head and FFN that has no
confirmed role is replaced by its mean over rows, all at once:

    kept = (loss without any component − loss with these alone) / (loss without any − loss whole)

1 is as good as the whole model, 0 as bad as without heads and FFNs. The same is done with other
sets of as many components, drawn at random (all of them, where they are few), and with all
components but those that have a role. ``among = heads`` asks the same of heads alone, all FFNs left
as they are: there are roles for what heads do, and few for FFNs. A model is left out if it does not
solve its task, and told apart if every component has a role: there keeping them changes nothing.
Models without attention (baselines, and a transformer without layers) are not asked.

That confirmed roles carry a model does not say that each is needed, nor that its name tells all it
does; necessity is the roles' own test.

JSON keys, of ``all`` components and of ``heads``: ``models`` (how many were asked), ``faithful``
(how many keep 0.95), ``median`` and ``least`` of ``kept``, ``random`` (the mean over models of what
random sets keep), ``told`` (of how many models random sets keep 0.5 at most), ``whole`` (models of
which every component has a role); and ``unsolved``, ``rows``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import comb, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from analyses.benchmarks.result import write_result
from prooflens.architectures import TransformerSpec
from prooflens.errors import Problems
from prooflens.hooks import evaluating
from prooflens.interventions import Component, components, loss_unit
from prooflens.machine import one_thread
from prooflens.roles import find_roles
from prooflens.run import Mean, Run, written_by
from prooflens.tasks import Batch, answers_of, memories_of, sought_of
from prooflens.trained import recipes as shipped_recipes
from prooflens.trained import zoo

__all__ = ["Faithfulness", "confirmed_parts", "faithfulness", "faithfulness_of"]

_FOUND_ON, _KEPT_ON = 128, 128
_ERROR = 0.05
"""Share of the targets' variance, or of wrong answers, up to which a model solves its task."""
_DRAWS = 40
_FAITHFUL, _CHANCE = 0.95, 0.5


@dataclass(frozen=True)
class Faithfulness:
    """What a model keeps with some of its components.

    Attributes:
        model: Its name.
        among: Whether ``all`` heads and FFNs are kept or replaced, or ``heads`` alone.
        roles: How many of these have a confirmed role.
        components: How many of them there are.
        kept: The share of what they do together that those with a role do alone.
        random: The mean over other sets of as many; NaN where there are none.
        others: The share that all components without a role do; NaN where there are none.
        error: The whole model's error: a share of the targets' variance, or of wrong answers.
    """

    model: str
    among: str
    roles: int
    components: int
    kept: float
    random: float
    others: float
    error: float


def confirmed_parts(
    model: Any, task: Any, *, rows: int = _FOUND_ON, seed: int = 1
) -> set[Component]:
    """The heads and FFNs of which a role of the task is confirmed.

    Args:
        model: A shipped model.
        task: What it learned.
        rows: On how many rows roles are found.
        seed: Seed of the rows.
    """
    roles = find_roles(
        model,
        task.sample(rows, seed=seed),
        memories=memories_of(task),
        answers=answers_of(task),
        sought=sought_of(task),
    )
    found = roles[(roles["status"] == "confirmed") & roles["component"].isin(["head", "ffn"])]
    named = {(row.component, row.layer, row.head) for row in found.itertuples()}
    return {part for part in components(model) if (part.kind, part.layer, part.head) in named}


@torch.no_grad()
def faithfulness_of(
    name: str,
    model: Any,
    batch: Batch,
    own: set[Component],
    *,
    among: str = "all",
    seed: int = 0,
) -> Faithfulness:
    """What a model keeps on some rows with some of its components.

    Args:
        name: The model's.
        model: A hooked model.
        batch: Rows with targets, on which these components were not chosen.
        own: The components that are kept.
        among: ``all``, or ``heads`` where FFNs stay.
        seed: Seed of the random sets.
    """
    every = [one for one in components(model) if among == "all" or one.kind == "head"]
    own = own & set(every)
    with evaluating(model):
        run = Run(model, batch)
        full, none = _loss(run, []), _loss(run, every)

        def share(kept: set[Component]) -> float:
            return (none - _loss(run, [one for one in every if one not in kept])) / (none - full)

        sets = list(_others(every, own, seed))
        rest = set(every) - own
        return Faithfulness(
            name,
            among,
            len(own),
            len(every),
            share(own),
            float(np.mean([share(some) for some in sets])) if sets else nan,
            share(rest) if rest else nan,
            _error(run),
        )


def _loss(run: Run, without: Sequence[Component]) -> float:
    """The mean loss of the rows without some components."""
    edits = [Mean(written_by(run.model, part.layer, part.head)) for part in without]
    changed = run.with_(*edits)
    return float(changed.by_row(changed.value()).mean())


def _error(run: Run) -> float:
    """The share of the targets' variance that the whole model misses, or of wrong answers."""
    if run.batch.targets.is_floating_point():
        return _loss(run, []) / loss_unit(run.batch)
    wrong = run.value(lambda output, targets: output.argmax(-1) != targets)
    return float(wrong.sum() / run.batch.mask.sum())


def _others(every: Sequence[Component], own: set[Component], seed: int) -> Iterator[set[Component]]:
    """Yield sets of as many components other than the given one: all, or some at random."""
    if comb(len(every), len(own)) <= _DRAWS:
        yield from (set(some) for some in combinations(every, len(own)) if set(some) != own)
        return
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        some = {every[i] for i in rng.choice(len(every), len(own), replace=False)}
        if some != own:
            yield some


@one_thread()
def faithfulness(only: str = "") -> dict[str, Any]:
    """Every shipped model of a task, with what its confirmed roles keep.

    Args:
        only: Models whose name has this in it.

    Raises:
        ArgumentError: if no shipped transformer has such a name.
    """
    started, console = time.perf_counter(), Console(stderr=True)
    recipes = [recipe for recipe in shipped_recipes() if only in recipe.name]
    names = [
        one.name for one in recipes if isinstance(one.spec, TransformerSpec) and one.spec.heads
    ]
    problems = Problems("faithfulness")
    problems.need(bool(names), "only", "must be in a shipped model's name", only, "leave it out")
    problems.raise_if_any()
    found = []
    for name in track(names, "models", console=console, disable=not console.is_terminal):
        shipped = zoo.load(name)
        batch = shipped.task.sample(_KEPT_ON, seed=2)
        own = confirmed_parts(shipped.model, shipped.task)
        for among in ("all", "heads"):
            found.append(faithfulness_of(name, shipped.model, batch, own, among=among))
    solved = [one for one in found if one.error <= _ERROR]
    return {
        "all": _summary([one for one in solved if one.among == "all"]),
        "heads": _summary([one for one in solved if one.among == "heads"]),
        "unsolved": sorted({one.model for one in found if one not in solved}),
        "rows": [asdict(one) for one in found],
        "seconds": time.perf_counter() - started,
    }


def _summary(solved: Sequence[Faithfulness]) -> dict[str, Any]:
    asked = [one for one in solved if one.roles < one.components]
    kept = [one.kept for one in asked] or [nan]
    random = [one.random for one in asked if isfinite(one.random)] or [nan]
    return {
        "models": len(asked),
        "faithful": sum(one >= _FAITHFUL for one in kept),
        "median": float(np.median(kept)),
        "least": min(kept),
        "random": float(np.mean(random)),
        "told": sum(one <= _CHANCE for one in random),
        "whole": [one.model for one in solved if one.roles == one.components],
    }


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="What models keep with confirmed roles alone.")
    parser.add_argument("--only", default="", help="Models whose name has this in it.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_result(faithfulness(options.only), options.out)
