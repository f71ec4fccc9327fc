"""By how much the loss rises when each head and FFN is ablated, on every trial.

    rise = mean over rows of (loss with the component at its mean over rows − loss), nats per token

The null is that of :func:`interp.interventions.ablation_effects.ablate`. If a model has more than
64 heads and FFNs, only heads with a role that is not rejected are ablated (unless all are
requested), and on 8 rows at most (:mod:`interp.run.evidence`): the table decides nothing, and has
intervals; its null is then that the loss does not rise. Pieces of the work, some components on one
trial each, are sealed into a store as they are finished and read back from it when an inspection is
resumed; with the backend ``ray`` each piece is a task of a Ray cluster.

Mean ablation puts the model into states that it never has otherwise, and a head whose work another
takes over has no effect: a missing rise does not prove that a head is unused.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component, components
from interp.ray_tasks import need_backend, ray_results, require_ray, worker_model
from interp.run import Mean, Run, gather_evidence, output_site
from interp.run.evidence import LEAST_ROWS
from interp.stats.head_table import ANY_TARGET, complete_table, head_table, score_row
from interp.stats.p_values import Null
from interp.store import ActivationStore
from interp.tasks.base import Batch
from probes.roles.change import from_finding
from probes.roles.evidence import Evidence
from probes.roles.trials import Trial

_MANY, _AT_ONCE = 64, 48

Watch = Callable[[Sequence[Any]], Iterable[Any]]
"""A function that passes on the items that it gets, and may show progress meanwhile."""

Piece = tuple[Trial, list[Component], float]
"""A trial, components to ablate on it, and the floor with which their effects are compared: rows
are run until it is decided which ones are above it. With a floor of 0 all rows are run."""


def check_backend(backend: str) -> None:
    """Refuse a backend that does not exist.

    Raises:
        ArgumentError: for another name than ``local`` and ``ray``.
        MissingDependencyError: for ``ray`` if Ray is not installed.
    """
    problems = Problems("inspect")
    need_backend(problems, backend)
    problems.raise_if_any()
    if backend == "ray":
        require_ray()


def ablated_parts(
    model: HookedModel, roles: pd.DataFrame, *, every: bool = False
) -> list[Component]:
    """Return the components whose ablation is measured.

    These are all components of a model with at most 64; of others the heads with a role that is not
    rejected, unless ``every`` component is requested.

    Args:
        model: The hooked model.
        roles: The role table.
        every: Whether to return all components.
    """
    parts = list(components(model))
    if every or len(parts) <= _MANY:
        return parts
    heads = roles[(roles["component"] == "head") & (roles["status"] != "rejected")]
    named = set(zip(heads["layer"], heads["head"], strict=True))
    return [part for part in parts if (part.layer, part.head) in named]


def loss_tables(
    evidence: Evidence,
    trials: Sequence[Trial],
    parts: Sequence[Component],
    store: ActivationStore | None,
    *,
    seed: int,
    every: bool = False,
    watch: Watch = lambda items: items,
    backend: str = "local",
    loader: Callable[[], HookedModel] | None = None,
) -> pd.DataFrame:
    """Measure the rise of the loss on every trial without each component, as a head table.

    Args:
        evidence: The evidence that the roles were decided from; its runs are reused.
        trials: The kinds of rows.
        parts: The components.
        store: The store into which finished pieces are sealed, and from which they are read when an
            inspection is resumed; None to seal nothing.
        seed: Seed of the intervals.
        every: Whether to run all rows with each component, however large the model.
        watch: A wrapper around the loop over pieces of the work, for a progress bar.
        backend: ``local``, or ``ray`` to make each piece a task.
        loader: For ``ray``: a function that builds the model on a worker, if the model cannot be
            pickled.

    Raises:
        MissingDependencyError: for ``ray`` if Ray is not installed.
        ProoflensError: if a worker fails, or dies four times at one piece.
    """
    known = {trial.name: _sealed_losses(store, trial, seed) for trial in trials}
    few = len(components(evidence.model)) > _MANY and not (every or evidence.exhaustive)
    floor, at_once = (evidence.floors.loss, max(len(parts), 1)) if few else (0.0, _AT_ONCE)
    pieces: list[Piece] = []
    for trial in trials:
        done = set(_places(known[trial.name]))
        left = [part for part in parts if (part.kind, part.layer, part.head) not in done]
        pieces += [(trial, left[i : i + at_once], floor) for i in range(0, len(left), at_once)]
    far = backend == "ray"
    results = (
        _on_ray(loader or evidence.model, pieces, seed) if far else _here(evidence, pieces, seed)
    )
    for _, (number, found) in zip(watch(pieces), results, strict=True):
        trial = pieces[number][0]
        joined = pd.concat([known[trial.name], found.assign(trial=trial.name)], ignore_index=True)
        known[trial.name] = complete_table(joined, family=ANY_TARGET)
        if store is not None:
            name, about = f"loss-{trial.name}", _about(trial, seed)
            store.write_measurement(name, known[trial.name], about, overwrite=True)
    order = {(part.kind, part.layer, part.head): number for number, part in enumerate(parts)}
    return pd.concat([_order_parts(table, order) for table in known.values()], ignore_index=True)


def _order_parts(table: pd.DataFrame, order: dict[tuple[str, int, int], int]) -> pd.DataFrame:
    """Return a trial's table for the requested components, in their order."""
    numbers = np.array([order.get(at, -1) for at in _places(table)], dtype=int)
    return table.iloc[[i for i in np.argsort(numbers, kind="stable") if numbers[i] >= 0]]


def _here(evidence: Evidence, pieces: Sequence[Piece], seed: int) -> Iterator[tuple[int, Any]]:
    for number, (trial, some, floor) in enumerate(pieces):
        yield number, _without(evidence.run(trial.name), some, floor, seed)


def _on_ray(model: Any, pieces: Sequence[Piece], seed: int) -> Iterator[tuple[int, Any]]:
    if not pieces:
        return iter(())
    return ray_results(
        _ablate_on_worker,
        ((trial.batch, some, floor) for trial, some, floor in pieces),
        name=lambda number: f"piece {number + 1} of the losses ({pieces[number][0].name})",
        shared=(model, uuid.uuid4().hex, seed, torch.get_num_threads()),
        cores=torch.get_num_threads(),
    )


def _ablate_on_worker(
    model: Any,
    run: str,
    seed: int,
    threads: int,
    batch: Batch,
    parts: list[Component],
    floor: float,
) -> pd.DataFrame:
    """Do a piece of the work on a worker, with as many threads as the calling process uses."""
    torch.set_num_threads(threads)
    return _without(Run(worker_model(model, run), batch), parts, floor, seed)


def _without(run: Run, parts: list[Component], floor: float, seed: int) -> pd.DataFrame:
    """Return the rise of the loss without each component (a head table).

    With a floor of 0 all rows are run; otherwise at most 8 rows, and slopes are used on the others.
    """
    if not floor:
        with evaluating(run.model):
            return ablate(run.model, run.batch, parts, seed=seed)
    edits = [Mean(output_site(run.model, part.layer, part.head)) for part in parts]
    found = gather_evidence(run, edits, floor=floor, most=LEAST_ROWS, seed=seed)
    changes = [from_finding(one, len(run)) for one in found]
    lines = [
        score_row(
            "loss_increase",
            change.score,
            Null(0.0, one.error, change.p, "paired"),
            component=part.kind,
            layer=part.layer,
            head=part.head,
            method="mean",
            target="output",
            interval=(change.low, change.high),
        )
        for part, one, change in zip(parts, found, changes, strict=True)
    ]
    return head_table(lines, family=ANY_TARGET)


def _sealed_losses(store: ActivationStore | None, trial: Trial, seed: int) -> pd.DataFrame:
    """Return the table that an interrupted inspection sealed for a trial; an empty one if there is
    none."""
    name = f"loss-{trial.name}"
    there = store is not None and name in store.measurements
    if store is not None and there and store.provenance(name) == _about(trial, seed):
        return store.measurement(name)
    return head_table([])


def _about(trial: Trial, seed: int) -> dict[str, Any]:
    digest = hashlib.sha256(trial.batch.inputs.numpy().tobytes()).hexdigest()
    return {"rows_sha256": digest, "seed": seed}


def _places(table: pd.DataFrame) -> Iterator[tuple[str, int, int]]:
    return zip(table["component"], table["layer"], table["head"], strict=True)
