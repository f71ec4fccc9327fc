"""The experiment of a claim: models trained over settings and seeds, and their results as a table.

    experiment = Experiment(setting)
    for heads in options["heads"]:
        experiment.add({"heads": heads}, task, spec_of(task, options, n_heads=heads))
    table, fits = experiment.run()          one row a run: its labels, metrics on fresh rows
    medians(table, ["heads"])               the middle seed of each
    by_seed(table, ["heads"])               every seed's number, for the result
    decide(all_hold, some_hold)             the verdict

A claim says which settings, which number and which rule; how runs are named, kept, resumed and
made into a table is here. Errors are mean square errors on fresh rows as a share of the target's
variance, so that 1 is what the best constant reaches. Means hide seeds that got stuck: medians
decide, and every seed is kept. A verdict is about the settings that were trained and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analyses.papers.base import Drawing, Setting, Status, Verdict
from analyses.papers.sequential import in_turn
from prooflens.architectures import build
from prooflens.tasks import Task
from prooflens.trained import Fit, Training, TrainingRun, train

__all__ = [
    "Experiment",
    "Planned",
    "by_seed",
    "decide",
    "interval",
    "medians",
    "parameters",
    "spread",
    "status_of",
    "train_runs",
    "verdict",
]

Planned = tuple[Mapping[str, Any], TrainingRun]
"""The labels of a run in the table, and the run."""


class Experiment:
    """The runs of one claim, trained together; an interrupted experiment keeps its progress.

    Args:
        setting: The claim's; the profile's ``steps``, ``batch`` and ``learning_rate`` hold for
            every run.
        part: The folder for the runs' states, inside the claim's folder.
        test: A function from a run's task to the task it is tested on; None for the same task.
        training: Options of :class:`~trained.run.Training` that hold for every run.

    Attributes:
        planned: The runs that were added.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        part: str = "models",
        test: Callable[[Any], Task | None] | None = None,
        **training: Any,
    ) -> None:
        self.setting, self.part, self.test = setting, part, test
        given = {k: setting.options[k] for k in ("steps", "batch", "learning_rate")}
        self.training = {**given, **training}
        self.planned: list[Planned] = []

    def add(
        self,
        labels: Mapping[str, Any],
        task: Task,
        spec: Any,
        *,
        seeds: Iterable[int] | None = None,
        test: Task | None = None,
        **training: Any,
    ) -> None:
        """Add a run for every seed, named by its labels.

        Args:
            labels: Column → value, in the table; ``seed`` is added.
            task: The task that is trained on.
            spec: The spec of the model.
            seeds: The seeds; the setting's by default.
            test: The task that is tested on; what the experiment says by default.
            training: Training options that differ for these runs.
        """
        if test is None and self.test is not None:
            test = self.test(task)
        for seed in self.setting.seeds if seeds is None else seeds:
            named = {**labels, "seed": seed}
            name = "_".join(f"{k}-{v}" for k, v in named.items()).replace("/", "-").replace(" ", "")
            chosen = Training(**{**self.training, **training, "seed": seed})
            self.planned.append((named, TrainingRun(name, task, spec, chosen, test=test)))

    def run(
        self, *, levels: Sequence[float] = (), y: str = "error"
    ) -> tuple[pd.DataFrame, list[Fit]]:
        """Train the runs that were added.

        Args:
            levels: If given, all that is asked of a setting is whether its median over seeds is at
                most each of these, and seeds are taken in turn until that is settled
                (:mod:`.sequential`). Of an even number of seeds all are taken.
            y: The metric whose median that is.

        Returns:
            One row a run: its labels, ``parameters``, and the fit's metrics (``train_`` before
            those of its training rows); and the fits, in the order of the runs that were trained.
        """
        found: list[tuple[Planned, Fit]] = []

        def train_planned(planned: Sequence[Planned]) -> list[Fit]:
            part = f"{self.part}-{len(found)}" if found else self.part
            fits = train_runs(self.setting, [run for _, run in planned], part)
            found.extend(zip(planned, fits, strict=True))
            return fits

        if levels and len(self.setting.seeds) % 2:
            runs = {(_cell(labels), labels["seed"]): (labels, run) for labels, run in self.planned}
            middle = len(self.setting.seeds) // 2 + 1
            needed = {cell: [middle] * len(levels) for cell, _ in runs}
            in_turn(
                self.setting.seeds,
                needed,
                lambda cases: [
                    [fit.metrics[y] <= level for level in levels]
                    for fit in train_planned([runs[case] for case in cases])
                ],
            )
        else:
            train_planned(self.planned)
        rows = [
            {**labels, "parameters": parameters(run.spec), **fit.metrics}
            for (labels, run), fit in found
        ]
        return pd.DataFrame(rows), [fit for _, fit in found]


def _cell(labels: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the labels of a run without its seed: the setting, which all its seeds share."""
    return tuple(value for name, value in labels.items() if name != "seed")


def train_runs(setting: Setting, runs: Sequence[TrainingRun], part: str) -> list[Fit]:
    """Train the runs and return their results in the same order. Their states are saved in the
    subfolder ``part`` of the claim's folder."""
    return train(
        runs,
        folder=setting.folder / part,
        resume=setting.resume,
        device=setting.device,
        backend=setting.backend,
        progress=setting.progress,
        workers=setting.workers,
    )


def parameters(spec: Any) -> int:
    """Return the number of trained parameters of a model with this spec."""
    return sum(p.numel() for p in build(spec).parameters() if p.requires_grad)


def medians(table: pd.DataFrame, by: Sequence[str], y: str = "error") -> dict[Any, float]:
    """Return the median over seeds for each setting.

    Args:
        table: A table with one row per run.
        by: The columns that define a setting.
        y: The column of the median.

    Returns:
        Values of the columns ``by`` (a tuple, or the value itself for a single column) → median.
    """
    found = table.groupby(list(by) if len(by) > 1 else by[0], sort=False)[y].median()
    return {key: float(value) for key, value in found.items()}


def by_seed(
    table: pd.DataFrame, by: Sequence[str], y: str = "error", *, between: str = ", "
) -> dict[str, list[float]]:
    """Return every seed's value for each setting, as JSON data whose keys are the settings as
    text."""
    groups = table.groupby(list(by), sort=False)[y]
    return {between.join(map(str, key)): [float(v) for v in rows] for key, rows in groups}


def spread(values: Sequence[float], form: str = ".2g") -> str:
    """Summarise some values as text: ``median (least … largest)``."""
    ordered = sorted(values)
    middle = float(pd.Series(ordered).median())
    return f"{middle:{form}} ({ordered[0]:{form}} … {ordered[-1]:{form}})"


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of at least two values."""
    found = np.asarray(values, dtype=np.float64)
    half = float(student.ppf(0.975, len(found) - 1)) * found.std(ddof=1) / len(found) ** 0.5
    return float(found.mean() - half), float(found.mean() + half)


def decide(reproduced: bool, partly: bool = False) -> Status:
    """Return the status ``reproduced``, ``partly`` or ``not reproduced``.

    Args:
        reproduced: Whether the rule for ``reproduced`` is met.
        partly: Whether the rule for ``partly`` is met; it matters only if the first is not.
    """
    return "reproduced" if reproduced else "partly" if partly else "not reproduced"


def status_of(statements: Mapping[str, bool], *, needed: Sequence[str] = ()) -> Status:
    """Return the status of a claim that makes several statements: ``reproduced`` if all hold,
    ``partly`` if some do, else ``not reproduced``.

    Args:
        statements: Statement in words → whether it holds.
        needed: The statements that must all hold for ``partly``; by default any single one will do.
    """
    some = all(statements[n] for n in needed) if needed else any(statements.values())
    return decide(all(statements.values()), some)


def verdict(
    status: Status,
    words: str,
    key: str,
    numbers: Mapping[str, Any],
    *,
    name: str,
    table: pd.DataFrame,
    drawing: Drawing,
) -> Verdict:
    """Make a :class:`Verdict` with one table and one drawing that have the same name."""
    return Verdict(status, words, key, numbers, {name: table}, {name: drawing})
