"""One training run: which model learns which task, and how it is trained.

Whether they fit each other is told by rows of the task: a vocabulary, a width or a length that the
model does not have is refused before training. Tokens too rare to be among these rows are not seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from interp.errors import ArgumentError, Problems
from interp.models.kinds import Spec, kind_of
from interp.tasks.base import Task
from trained.training import Training

__all__ = ["Run", "check_runs", "check_spec"]

_ROWS = 64


@dataclass(frozen=True)
class Run:
    """A model's spec, the task it is trained on, and the options of the training.

    Attributes:
        name: Unique in a grid; a folder's name, so without slashes.
        task: The task from which training rows are drawn.
        spec: The spec of a transformer or a baseline.
        training: The options of the training.
        test: Where the metrics' rows come from; ``task`` itself by default.

    Raises:
        ArgumentError: for a name that cannot be a folder's, or something that is no spec.
    """

    name: str
    task: Task
    spec: Spec
    training: Training
    test: Task | None = None

    def __post_init__(self) -> None:
        problems = Problems("Run")
        good = bool(self.name) and not set(self.name) & set("/\\\0") and self.name[0] != "."
        rule = "must be a name without slashes or a leading dot"
        problems.need(good, "name", rule, self.name, "e.g. depth-2-seed-0")
        problems.raise_if_any()
        kind_of(self.spec)

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON data."""
        return {
            "name": self.name,
            "task": self.task.to_dict(),
            "spec": {"kind": kind_of(self.spec), **self.spec.to_dict()},
            "training": asdict(self.training),
            "test": self.test.to_dict() if self.test is not None else None,
        }


def check_runs(runs: Sequence[Run]) -> None:
    """Raise an error for runs whose model cannot read their task's rows or give its answers.

    Raises:
        ArgumentError: naming every option of a spec that does not fit, and its run.
    """
    problems, known = Problems("train"), set()
    for run in runs:
        data = run.to_dict()
        key = json.dumps([data[part] for part in ("task", "test", "spec")], sort_keys=True)
        if key not in known:
            known.add(key)
            for task in [run.task] if run.test is None else [run.task, run.test]:
                try:
                    check_spec(task, run.spec)
                except ArgumentError as error:
                    problems.found += [f"{run.name}: {words}" for _, words in error.problems]
    problems.raise_if_any()


def check_spec(task: Task, spec: Spec) -> None:
    """Raise an error for a spec whose model cannot read a task's rows or give its answers.

    Raises:
        ArgumentError: naming every option that does not fit.
    """
    problems, batch = Problems("spec"), task.sample(_ROWS, seed=0)
    inputs, scored, found = batch.inputs, batch.targets[batch.mask], f"for task {task.name}"
    kind = "real" if inputs.is_floating_point() else "tokens"
    problems.need(spec.input == kind, "input", f"must be {kind} {found}", spec.input, "change it")
    if kind == spec.input == "tokens":
        least = int(inputs.max()) + 1
        rule = f"must be at least {least}, the vocabulary {found}"
        problems.need(spec.d_in >= least, "d_in", rule, spec.d_in, "raise it")
    elif kind == spec.input:
        width = inputs.shape[-1]
        rule = f"must be {width}, the input's channels {found}"
        problems.need(spec.d_in == width, "d_in", rule, spec.d_in, "change it")
    if scored.is_floating_point():
        width = scored.shape[-1]
        rule = f"must be {width}, the target's width {found}"
        problems.need(spec.d_out == width, "d_out", rule, spec.d_out, "change it")
    elif len(scored):
        least = int(scored.max()) + 1
        rule = f"must be at least {least}, the answers {found}"
        problems.need(spec.d_out >= least, "d_out", rule, spec.d_out, "raise it")
    length, whole = inputs.shape[1], getattr(spec, "kind", "") == "mlp"
    good = length == spec.n_ctx if whole else length <= spec.n_ctx
    rule = f"must be {'' if whole else 'at least '}{length}, the length {found}"
    problems.need(good, "n_ctx", rule, spec.n_ctx, "change it")
    problems.raise_if_any()
