"""Train many models, in stacks of models of the same shape.

Stacks are trained one after another, in several processes, or on Ray. The results depend neither on
the order of the runs nor on their division into stacks, up to floating-point rounding: see
:mod:`trained.ensemble`. With a folder, an interrupted grid can be resumed; the division into stacks
is stored there, so that it continues to the same result.

*The size of a stack.* A stack shares the fixed cost of each operation between its members; if it is
too large, it no longer fits the cache. The size changes floating-point rounding, so it does not
depend on measured times: the same runs give the same bits. On a CPU it is chosen so that a step's
widest activation and the weights stay in the cache until they are read again. Measured on models of
eight claims, a member's step then takes the least time or up to 15 % more, while larger stacks took
up to 1.8 times as long. Other devices can hold more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import Progress, TaskID

from interp import telling
from interp.errors import CheckpointError, OutputError, Problems, refuse_unless
from interp.machine import check_device
from interp.models.kinds import build
from interp.models.spec import TransformerSpec
from interp.output import output_file, scratch_folder
from interp.ray_tasks import need_backend, require_ray
from interp.reading import read_json
from interp.schema import FileTable, Text, Whole
from trained.ensemble import groups
from trained.fit import Fit, fits_of
from trained.recipe import Recipe, read_recipe
from trained.run import TrainingRun, check_runs
from trained.stack_runner import (
    PLAN,
    Job,
    Options,
    cores,
    digest,
    run_elsewhere,
    train_unit,
    training_place,
)

_MEMBERS = 16
"""Largest number of models that are trained as one stack."""

_WEIGHTS, _ACTIVATION = 1 << 19, 1 << 17
"""Limits on a stack on a CPU: its number of weights, and the number of entries of its widest
activation. A step takes least time while the activations stay in the cache; on eight models' shapes
this was up to about 2^17 entries."""

_ELSEWHERE = 1 << 26
"""The same limits, both, on other devices."""


def cut(members: Sequence[int], size: int) -> list[list[int]]:
    """Divide members into stacks of about equal size, of at most ``size`` members each."""
    count = -(-len(members) // size)
    return [
        list(members[i * len(members) // count : (i + 1) * len(members) // count])
        for i in range(count)
    ]


def stack_size(runs: Sequence[TrainingRun], *, device: str = "cpu") -> int:
    """Return how many models are trained as one stack.

    Args:
        runs: Runs whose models have the same shape.
        device: The device on which they will be trained.
    """
    most = (_WEIGHTS, _ACTIVATION) if device == "cpu" else (_ELSEWHERE, _ELSEWHERE)
    weights = sum(weight.numel() for weight in build(runs[0].spec).parameters())
    taken = max(1, int(weights)), _activation(runs[0])
    fitting = (room // one for room, one in zip(most, taken, strict=True))
    return max(1, min(_MEMBERS, *fitting, len(runs)))


def _activation(run: TrainingRun) -> int:
    """Return the number of entries of a transformer's widest activation in a batch: a layer's
    attention patterns, if they depend on the row, or the neurons of an FFN. For other models it is
    that of the inputs."""
    inputs = run.task.sample(1, seed=0).inputs
    wide, spec = int(inputs[0].numel()), run.spec
    if isinstance(spec, TransformerSpec):
        positions = len(inputs[0])
        own = spec.score != "none" or spec.uses_queries
        heads = max(spec.heads, default=0) * positions * own
        neurons = max(chain(spec.input_ffn, *spec.ffn_widths), default=0)
        wide = positions * max(spec.d_model, heads, neurons)
    return max(1, wide) * run.training.batch


_METRICS = "metrics.csv"
_LONG = 5_000  # steps of all runs together that pay for the start of processes
_MOST_WORKERS = 1024


class _GridNotes(FileTable):
    runs: Text
    stacks: list[list[Whole]]


def train(
    runs: Sequence[TrainingRun | Recipe | str | Path] | Recipe | str | Path,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    backend: str = "local",
    progress: bool = False,
    together: int | None = None,
    workers: int | None = None,
    minutes: float = 5.0,
    begin: Callable[[], None] = lambda: None,
    finish: Callable[[list[Fit]], None] = lambda fits: None,
) -> list[Fit]:
    """Train models, each from its own seed; runs of one shape are trained together.

    Args:
        runs: One or several runs, recipes or files of recipes, with unique names.
        folder: The folder for states and metrics; None to keep nothing.
        resume: Whether to continue an interrupted training in ``folder``.
        overwrite: Whether to begin anew although ``folder`` has an interrupted training.
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
        backend: ``local``, or ``ray`` for Ray tasks on a cluster or on this machine.
        progress: Whether to show a progress bar on the terminal.
        together: How many models a stack has; by default as many as its memory allows.
        workers: The number of local processes; by default one per core if there is enough to do.
        minutes: The time between two saves of a stack's state.
        begin: A function that is called before anything is trained, while no other process may
            train in ``folder``; an exception in it ends the call.
        finish: A function that is called with the results while no other process may train in
            ``folder``.

    Returns:
        The trained models, in the order of the runs.

    Raises:
        ArgumentError: for names that are not unique, an unknown backend, sizes below 1, or a spec
            that does not fit its task's rows.
        OutputError: if ``folder`` has a grid and neither ``resume`` nor ``overwrite`` is set, or
            another process trains there.
        CheckpointError: if ``folder`` has the state of other runs.
        KeyboardInterrupt: after Ctrl-C; the states are saved in ``folder``.
        MissingDependencyError: for the backend ``ray`` if Ray is not installed.
    """
    several = runs if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    wanted = [_run_of(item) for item in several]
    _check(wanted, backend, together, workers, device, minutes)
    check_runs(wanted)
    options = Options(device, minutes)
    with _place(folder) as where:
        begin()
        if overwrite and not resume:
            _forget(where)
        units = _plan(wanted, where, resume, options, together)
        count = workers if workers is not None else _workers(wanted, units, device)
        files = [where / f"stack-{number:03}.safetensors" for number in range(len(units))]
        jobs = [([wanted[i] for i in u], options, f) for u, f in zip(units, files, strict=True)]
        with Progress(console=Console(stderr=True), disable=not progress) as bar:
            task = bar.add_task(f"{len(wanted)} models", total=sum(map(_steps, jobs)))
            elsewhere = backend == "ray" or count > 1
            if elsewhere:
                for number in run_elsewhere(jobs, backend=backend, workers=count):
                    _advance(bar, task, _steps(jobs[number]))
            found = _fits(jobs, bar, task, elsewhere, keep=folder is not None)
        order = [index for unit in units for index in unit]
        fits = [fit for _, fit in sorted(zip(order, found, strict=True), key=itemgetter(0))]
        if folder is not None:
            with output_file(where / _METRICS, overwrite=True) as draft:
                metrics_table(wanted, fits).to_csv(draft, index=False)
        finish(fits)
    return fits


@contextmanager
def _place(folder: str | Path | None) -> Iterator[Path]:
    """Provide the given folder, or a temporary one that is removed afterwards."""
    if folder is None:
        with scratch_folder() as scratch:
            yield scratch
        return
    with training_place(folder) as where:
        yield where


def _forget(where: Path) -> None:
    for path in (where / PLAN, where / _METRICS, *where.glob("stack-*.safetensors")):
        path.unlink(missing_ok=True)


def _steps(job: Job) -> int:
    """Return the number of steps of all members of a stack together."""
    return job[0][0].training.steps * len(job[0])


def _fits(jobs: Sequence[Job], bar: Progress, task: TaskID, trained: bool, keep: bool) -> list[Fit]:
    """Return the results of each stack in order; stacks that no other process has trained are
    trained here."""
    found: list[Fit] = []
    for runs, options, file in jobs:

        def advance_bar(steps: int, members: int = len(runs)) -> None:
            _advance(bar, task, 0 if trained else steps * members)

        found += fits_of(train_unit(runs, options, file if trained or keep else None, advance_bar))
    return found


def _advance(bar: Progress, task: TaskID, steps: int) -> None:
    bar.advance(task, steps)
    whole = bar.tasks[task]
    telling.count(int(whole.completed), int(whole.total or 0))


def metrics_table(runs: Sequence[TrainingRun], fits: Sequence[Fit]) -> pd.DataFrame:
    """Return the metrics of trained models as a tidy table.

    Returns:
        Columns ``name``; one for each option that all runs have and in which they differ
        (``spec.n_layers``, ``training.learning_rate``, ``task.lags``; lists as JSON text);
        ``seed``, ``steps``, ``metric``, ``value``.
    """
    axes = _axes(runs)
    rows = [
        (run.name, *values, run.training.seed, len(fit.history), metric, value)
        for run, fit, *values in zip(runs, fits, *axes.values(), strict=True)
        for metric, value in fit.metrics.items()
    ]
    return pd.DataFrame(rows, columns=["name", *axes, "seed", "steps", "metric", "value"])


def _axes(runs: Sequence[TrainingRun]) -> dict[str, list[Any]]:
    """Return the options in which runs differ, apart from name and seed → each run's value."""
    flat = [_flat({k: v for k, v in run.to_dict().items() if k != "name"}) for run in runs]
    shared = [name for name in flat[0] if all(name in one for one in flat)] if flat else []
    table = {name: [one[name] for one in flat] for name in shared if name != "training.seed"}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested tables as one: ``spec.n_layers`` → value; lists as JSON text."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            plain = value is None or isinstance(value, str | int | float)
            found[before + name] = value if plain else json.dumps(value)
    return found


def _run_of(item: Any) -> TrainingRun:
    """Return a run, or the run of a recipe or of a file that has one."""
    recipe = read_recipe(item) if isinstance(item, str | Path) else item
    run = recipe.run if isinstance(recipe, Recipe) else recipe
    rule, advice = "must be recipes, or files of recipes", "see pl.trained.Recipe"
    refuse_unless(isinstance(run, TrainingRun), "runs", rule, item, advice)
    return run


def _check(
    runs: Sequence[TrainingRun],
    backend: str,
    together: int | None,
    workers: int | None,
    device: str,
    minutes: float,
) -> None:
    problems, names = Problems("train"), [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems.need(not twice, "runs", "must have names of their own", twice, "rename them")
    problems.need(bool(runs), "runs", "must name one", [], "add runs")
    need_backend(problems, backend)
    for name, value in (("together", together), ("workers", workers)):
        problems.need(value is None or value >= 1, name, "must be at least 1", value, "raise it")
    good, rule = (workers or 1) <= _MOST_WORKERS, f"must be at most {_MOST_WORKERS}"
    problems.need(good, "workers", rule, workers, f"this machine has {cores()} cores")
    good, rule = 0 < minutes < math.inf, "must be a number above 0"
    problems.need(good, "minutes", rule, minutes, "0.5 is every half minute")
    check_device(device, problems)
    problems.raise_if_any()
    if backend == "ray":
        require_ray()


def _plan(
    runs: Sequence[TrainingRun], folder: Path, resume: bool, options: Options, together: int | None
) -> list[list[int]]:
    """Return the stacks as lists of run indices: those stored in the folder, or new ones, which are
    then stored there.

    Raises:
        OutputError: if the folder has a grid and ``resume`` is not set.
        CheckpointError: if it has another grid, or notes that cannot be read.
    """
    file = folder / PLAN
    if file.exists():
        if not resume:
            raise OutputError(
                f"{folder} holds a training: resume=True (--resume) goes on with it, "
                "overwrite=True (--overwrite) begins anew; or choose another folder"
            )
        noted: dict[str, Any] = read_json(file, error=CheckpointError, shape=_GridNotes)
        units: list[list[int]] = noted["stacks"]
        if noted["runs"] != digest(runs):
            raise CheckpointError(f"{folder} holds another grid: choose another folder")
        if sorted(index for unit in units for index in unit) != list(range(len(runs))):
            raise CheckpointError(f"{file} is damaged: its stacks are not of these runs")
        return units
    units = []
    for group in groups(runs):
        members = [runs[i] for i in group]
        size = together or stack_size(members, device=options.device)
        units += [[group[i] for i in part] for part in cut(range(len(group)), size)]
    with output_file(file, overwrite=False) as draft:
        draft.write_text(json.dumps({"runs": digest(runs), "stacks": units}))
    return units


def _workers(runs: Sequence[TrainingRun], units: Sequence[Sequence[int]], device: str) -> int:
    """Return the number of processes: one per core for long grids on a CPU; short ones use one."""
    steps = sum(run.training.steps for run in runs)
    return min(cores(), len(units)) if device == "cpu" and steps >= _LONG else 1
