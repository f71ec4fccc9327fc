"""One training run: which model is trained on which task, and how.

Rows of the task show whether model and task fit: a vocabulary, a width or a length that the model
does not have is refused before training. Tokens too rare to be in these rows are not checked.

*How it is trained.*

    rate(step) = learning_rate · min(1, (step + 1)/warmup) · ½(1 + cos(π step/steps))

AdamW on the mean loss over the scored positions of each batch: squared error for real targets,
cross-entropy for token ids. Rows are fresh at every step unless ``rows`` says how many there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from interp.errors import ArgumentError, Problems, need
from interp.models.kinds import Spec, kind_of
from interp.schema import Whole, check_fields, from_fields
from interp.tasks.base import Task

Rate = Annotated[float, Field(gt=0, le=1e308)]
"""A finite number above 0, such as a learning rate."""
Beta = Annotated[float, Field(ge=0, lt=1)]
"""A decay rate of AdamW: at least 0 and below 1."""


@dataclass(frozen=True)
class Training:
    """Training by AdamW with linear warm-up and cosine decay of the learning rate.

    Attributes:
        steps: Number of optimiser steps.
        batch: Number of rows per step.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of all weights but those of the score terms.
        terms_learning_rate: Learning rate of the score terms (lag tables, slopes …) as a multiple
            of the others'; their weights are scalars that must change much.
        warmup: Number of steps of linear warm-up.
        clip: Largest norm of the gradient; larger gradients are scaled down to it.
        seed: Seed of the initial weights, and of the rows unless ``data_seed`` is given.
        rows: Size of a fixed training set, read in shuffled epochs; 0 for fresh rows every step.
        data_seed: Seed of the rows; None for ``seed``.
        betas: AdamW's β_1 and β_2.
        decay: ``cosine``, or ``none`` for a constant rate after the warm-up.
        stop_at: Stop early once the training loss, smoothed over about 50 steps, is at most this; 0
            for never.
        parameters: Globs of the names of the parameters that are trained, e.g. ``unembed.*``.
        snapshots: Number of steps between two snapshots of the weights; 0 for none.
        autocast: Whether to run the forward pass in bfloat16 (mixed precision; weights stay as they
            are).
        slopes: Initial slopes p_h of lin and log heads, one positive number per head, the same in
            every layer; ``()`` for 2^−h. Training does not find a sum of exponentials from every
            start.

    Raises:
        ArgumentError: naming every option that is out of range.
    """

    steps: Annotated[int, Field(ge=1, le=10**9)]
    batch: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    learning_rate: Rate = 3e-3
    weight_decay: Annotated[float, Field(ge=0, le=1e308)] = 0.0
    terms_learning_rate: Rate = 1.0
    warmup: Whole = 50
    clip: Rate = 1.0
    seed: Whole = 0
    rows: Annotated[int, Field(ge=0, le=10**9)] = 0
    data_seed: Whole | None = None
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    decay: Literal["cosine", "none"] = "cosine"
    stop_at: Annotated[float, Field(ge=0, le=1e308)] = 0.0
    parameters: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    snapshots: Whole = 0
    autocast: bool = False
    slopes: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        problems = Problems("training")
        check_fields(self, problems)
        problems.raise_if_any()

    @property
    def row_seed(self) -> int:
        """The seed from which rows are drawn."""
        return self.seed if self.data_seed is None else self.data_seed

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Training:
        """Make the options from a recipe's ``[training]`` table; lists become tuples.

        Raises:
            ArgumentError: for unknown or missing keys, or values that are refused.
        """
        return from_fields(cls, data, Problems("training"))


_ROWS = 64


@dataclass(frozen=True)
class TrainingRun:
    """A model's spec, the task it is trained on, and the options of the training.

    Attributes:
        name: The name, which is unique in a grid and names a folder, so it has no slashes.
        task: The task from which training rows are drawn.
        spec: The spec of a transformer or a baseline.
        training: The options of the training.
        test: The task from which rows for the metrics are drawn; ``task`` itself by default.

    Raises:
        ArgumentError: for a name that cannot be a folder's, or a spec of another type.
    """

    name: str
    task: Task
    spec: Spec
    training: Training
    test: Task | None = None

    def __post_init__(self) -> None:
        good = bool(self.name) and not set(self.name) & set("/\\\0") and self.name[0] != "."
        rule = "must be a name without slashes or a leading dot"
        need("TrainingRun", good, "name", rule, self.name, "e.g. depth-2-seed-0")
        kind_of(self.spec)

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON data."""
        return {
            "name": self.name,
            "task": self.task.to_dict(),
            "spec": {"kind": kind_of(self.spec), **self.spec.to_dict()},
            "training": asdict(self.training),
            "test": self.test.to_dict() if self.test is not None else None,
        }


def check_runs(runs: Sequence[TrainingRun]) -> None:
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
