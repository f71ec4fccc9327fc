"""Trained models in which roles are judged against exchange: families of recipes, trained and kept.

A family is a shipped recipe on other tasks (tables, lags, languages drawn anew) and from other
seeds. ``show`` says whether training is expected to find the proof's mechanism; what each model in
truth does is asked of the model (:mod:`analyses.benchmarks.trained_truth`), never assumed.

Models are trained family by family as one ensemble and kept in a folder, a family a folder, so that
a second run of the benchmark reads them. A model that did not learn its task has no mechanism to be
found and is left out by :func:`reaches_bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prooflens.tasks import AdaptiveMemory, Task
from prooflens.trained import Fit, TrainingRun, recipes, train

__all__ = [
    "FAMILIES",
    "SCORED",
    "TUNED",
    "TrainedFamily",
    "reaches_bound",
    "runs_of",
    "train_family",
]

SCORED, TUNED = tuple(range(100, 200)), (200, 201)
"""Seeds of the models that are scored (the first five by default), and of those on which floors
were tuned. No model of a tuning seed is scored."""


@dataclass(frozen=True)
class TrainedFamily:
    """Models of one recipe, on several tasks and from several seeds.

    Attributes:
        name: The name of the family.
        recipe: The shipped recipe that it varies.
        show: Whether training is expected to find the proof's mechanism.
        reached: A metric and its bound: a model has learned the task if its error is at most the
            bound, or its accuracy at least.
        task: A function from the shipped task and a seed to the family's task.
        spec, training: Changes to the recipe's.
    """

    name: str
    recipe: str
    show: bool
    reached: tuple[str, float]
    task: Callable[[Any, int], Task]
    spec: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def runs_of(family: TrainedFamily, seeds: Sequence[int]) -> list[TrainingRun]:
    """Return one run for each seed; the seed also draws the task."""
    recipe = {one.name: one for one in recipes()}[family.recipe]
    found = []
    for seed in seeds:
        task = family.task(recipe.task, seed)
        test = None if recipe.test is None else _test_task(recipe.test, task)
        length = getattr(task, "length", None)
        shipped: Any = recipe.spec
        fitted = {"n_ctx": length} if _has_task_length(length, task) else {}
        spec = replace(shipped, **{**fitted, **family.spec})
        training = replace(recipe.training, **{**family.training, "seed": seed})
        found.append(TrainingRun(f"{family.name}-{seed}", task, spec, training, test))
    return found


def train_family(
    family: TrainedFamily, seeds: Sequence[int], folder: Path, *, progress: bool = False
) -> Iterator[tuple[TrainingRun, Fit]]:
    """Yield the family's models with their fits: read from its folder, or trained there.

    Raises:
        CheckpointError: if the folder holds a family that was trained otherwise.
    """
    runs = runs_of(family, seeds)
    where = folder / f"{family.name}-{seeds[0]}-{len(seeds)}"
    fits = train(runs, folder=where, resume=True, progress=progress, workers=1)
    yield from zip(runs, fits, strict=True)


def reaches_bound(family: TrainedFamily, fit: Fit) -> bool:
    """Return whether a model has learned its task, by the family's bound."""
    metric, bound = family.reached
    value = fit.metrics[metric]
    return value <= bound if metric in ("error", "loss") else value >= bound


def _has_task_length(length: int | None, task: Task) -> bool:
    """Return whether a model's context must be the length of the task's rows. It need not be for
    template tasks, nor for tasks without a length."""
    return length is not None and not task.to_dict()["kind"].startswith("template")


def _test_task(test: Any, task: Any) -> Any:
    """Return the task that a family is tested on: for template tasks the shipped test with the
    family's own templates, for others the shipped test."""
    return task.unseen() if hasattr(task, "unseen") else test


_LAGS = ((1, 4, 7, 10), (1, 3, 6, 8), (2, 3, 5, 9), (1, 2, 5, 7), (2, 4, 6, 9))


def _vary_lags(length: int) -> Callable[[AdaptiveMemory, int], Task]:
    """Return a function from the shipped task and a seed to the same task with other lags and
    another table."""

    def of(task: AdaptiveMemory, seed: int) -> Task:
        lags = _LAGS[seed % len(_LAGS)]
        return replace(task, locations=lags, table_seed=seed, length=length)

    return of


def _other(**changes: Any) -> Callable[[Any, int], Task]:
    return lambda task, seed: replace(task, **changes)


FAMILIES = (
    TrainedFamily(
        "adaptive",
        "adaptive-memory",
        True,
        ("error", 0.002),
        _vary_lags(18),
        training={"steps": 2000},
    ),
    TrainedFamily(
        "adaptive-gated", "adaptive-memory-gated", False, ("error", 0.002), _vary_lags(18)
    ),
    TrainedFamily(
        "nested-2",
        "nested-memory-2",
        True,
        ("error", 0.005),
        _vary_lags(20),
        training={"batch": 48},
    ),
    TrainedFamily(
        "concurrent",
        "concurrent-memory",
        True,
        ("error", 0.01),
        _vary_lags(16),
        training={"steps": 3000},
    ),
    TrainedFamily(
        "fixed",
        "fixed-memory-multiplexer",
        True,
        ("accuracy", 0.999),
        lambda task, seed: replace(
            task, lags=((1, 3), (2, 5), (1, 4), (2, 3), (3, 5))[seed % 5], length=20
        ),
        training={"steps": 3000},
    ),
    TrainedFamily(
        "fixed-mixed",
        "fixed-memory-multiplexer-mixed",
        False,
        ("accuracy", 0.999),
        lambda task, seed: replace(
            task, lags=((1, 3), (2, 5), (1, 4), (2, 3), (3, 5))[seed % 5], length=20
        ),
        training={"steps": 3000},
    ),
    TrainedFamily(
        "light", "sparse-memory-light", True, ("error", 0.01), _other(length=32), spec={"n_ctx": 32}
    ),
    TrainedFamily(
        "light-layers",
        "sparse-memory-light-layers",
        False,
        ("error", 0.01),
        _other(length=32),
        spec={"n_ctx": 32},
    ),
    TrainedFamily("equality", "template-same-different-a", True, ("accuracy", 0.99), _other()),
    TrainedFamily("copying", "template-copying-b", True, ("accuracy", 0.95), _other()),
    TrainedFamily(
        "induction",
        "induction-attention",
        True,
        ("accuracy", 0.99),
        _other(length=32, vocabulary=24, symbols=8),
        spec={"d_in": 24, "d_out": 24},
    ),
    TrainedFamily(
        "induction-table",
        "induction-mlp-table",
        False,
        ("accuracy", 0.98),
        _other(length=32, vocabulary=24, symbols=8),
        spec={"d_in": 24, "d_out": 24},
        training={"steps": 1600},
    ),
    TrainedFamily(
        "count-3",
        "depth-L3-layers1",
        True,
        ("exact", 0.9),
        _other(bins=((3, 24),)),
        training={"steps": 1000},
    ),
    TrainedFamily(
        "count-4",
        "depth-L4-layers2",
        True,
        ("exact", 0.9),
        _other(bins=((4, 24),)),
        training={"steps": 1200},
    ),
    TrainedFamily(
        "coupling", "coupling-rank-2", True, ("error", 0.01), _other(), training={"steps": 1500}
    ),
)
