"""Roles of trained models against exchange: the ``trained`` block of the benchmark of roles.

    python -m analyses benchmark roles --profile trained --folder FOLDER [--seeds N] [--tune]

Families of recipes are trained, a model a seed; ``pl.locate`` says what each component holds, on
rows of its own, and roles are found on others. Decoys are untrained models of every family's shape,
on the same rows, one for two trained ones.

It goes on two seeds of a family at a time and says after each what it found and about how long the
rest takes. Models and what was measured of them stay in the folder: an interrupted run goes on, and
after a change of detectors roles alone are found anew.

JSON keys of ``trained``: those of the other profiles, and ``unsolved`` (models that did not learn
their task and are left out), ``models`` (those that are scored), ``families`` (of each the number
of models, of claims and of mistakes).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console

import prooflens
from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.scoring import ROLES, Claim, Outcome, score
from analyses.benchmarks.trained_models import (
    FAMILIES,
    SCORED,
    TUNED,
    TrainedFamily,
    reaches_bound,
    runs_of,
    train_family,
)
from analyses.benchmarks.trained_truth import claims_of
from prooflens.architectures import build
from prooflens.files import digest, output_file
from prooflens.probes import locate
from prooflens.roles import find_roles
from prooflens.tasks import answers_of, memories_of, role_variables
from prooflens.trained import TrainingRun

__all__ = ["TRAINED_ROLES", "TrainedSubject", "measure_trained", "subjects", "trained_block"]

TRAINED_ROLES = (
    *(role for role in ROLES if role not in ("sink", "local", "uniform")),
    "memory-mixture",
    "counting",
)
_ROWS, _PAIRS = 96, 192
_COUNTED = ("models", "claims", "mistakes")
_READ = 5.0
"""Number of seconds below which a pair of models must have been read from its folder instead of
measured. Such pairs are left out of the estimate of the time left."""
_TARGETED = ("memory-location", "readout", "nested-round")


@dataclass(frozen=True)
class TrainedSubject:
    """A trained model of a family or, as a decoy, an untrained model of the same shape."""

    family: str
    model: Any
    run: TrainingRun
    folder: Path
    decoy: bool = False

    @property
    def name(self) -> str:
        """The name of the family with the seed."""
        return f"{'untrained ' * self.decoy}{self.run.name}"


def subjects(
    family: TrainedFamily, seeds: Sequence[int], folder: Path, *, progress: bool = False
) -> tuple[list[TrainedSubject], list[str]]:
    """Return a family's models that learned the task with one decoy of the same shape, and the
    names of the models that did not learn it."""
    found, left = [], []
    for run, fit in train_family(family, seeds, folder, progress=progress):
        if reaches_bound(family, fit):
            found.append(TrainedSubject(family.name, fit.model, run, folder))
        else:
            left.append(run.name)
    (run,) = runs_of(family, seeds[:1])
    fresh = build(run.spec, seed=run.training.seed + 1000).eval()
    return [*found, TrainedSubject(family.name, fresh, run, folder, decoy=True)], left


def measure_trained(subject: TrainedSubject) -> Outcome:
    """Locate one model's latents by exchange, find its roles on other rows, and compare the two."""
    torch.set_num_threads(1)
    start, run = time.perf_counter(), subject.run
    file = subject.folder / "measured" / f"{subject.name}.json"
    truth: set[Claim] = set()
    unknown: set[tuple[str, int, int]] = set()
    also: set[Claim] = set()
    if not subject.decoy:
        of = depends_on(run, detectors=False, given=[_PAIRS])
        located = measure_once(file, "located", of, lambda: _locate(subject))
        truth, unknown, also = claims_of(pd.DataFrame(located), run.task)
    of = depends_on(run, detectors=True, given=[_ROWS])
    return Outcome(
        name=subject.name,
        decoy=subject.decoy,
        truth=truth,
        found=_singles(measure_once(file, "roles", of, lambda: _confirmed_claims(subject))),
        unscored=unknown,
        exempt=also,
        peers=None,
        seconds=time.perf_counter() - start,
    )


def _locate(subject: TrainedSubject) -> list[dict[Any, Any]]:
    task, seed = subject.run.task, subject.run.training.seed
    return locate(subject.model, task, rows=_PAIRS, seed=seed).to_dict("records")


def _confirmed_claims(subject: TrainedSubject) -> list[Claim]:
    task, seed = subject.run.task, subject.run.training.seed
    roles = find_roles(
        subject.model,
        task.sample(_ROWS, seed=seed + 5000),
        memories=memories_of(task),
        answers=answers_of(task),
        sought=role_variables(task),
        targets=False,
        seed=seed,
    )
    return [_claim(row) for row in roles[roles["status"] == "confirmed"].itertuples()]


def _singles(claims: Sequence[Sequence[Any]]) -> set[Claim]:
    """Return the claims about single components. Claims about groups are left out: their members
    have claims of their own."""
    found = {(str(c), int(layer), int(head), str(r), str(t)) for c, layer, head, r, t in claims}
    return {claim for claim in found if claim[0] != "group"}


def _claim(row: Any) -> Claim:
    role = "memory-location" if row.role == "memory-correction" else row.role
    target = row.target if role in _TARGETED else ""
    return row.component, int(row.layer), int(row.head), role, target


def trained_block(
    folder: Path, *, seeds: int, tuning: bool, workers: int, only: str = ""
) -> dict[str, Any]:
    """Measure the models of all families and return the block ``trained`` of the benchmark's
    JSON."""
    start, console = time.perf_counter(), Console(stderr=True)
    asked = TUNED if tuning else SCORED[:seeds]
    families = [family for family in FAMILIES if only in family.name]
    parts = [(asked[i : i + 2], f) for i in range(0, len(asked), 2) for f in families]
    chosen: list[TrainedSubject] = []
    outcomes: list[Outcome] = []
    left: list[str] = []
    took: list[float] = []
    for number, (pair, family) in enumerate(parts, 1):
        began = time.perf_counter()
        models, unsolved = subjects(family, pair, folder, progress=console.is_terminal)
        found = list(measure_all(measure_trained, models, workers))
        chosen, outcomes, left = [*chosen, *models], [*outcomes, *found], [*left, *unsolved]
        took.append(time.perf_counter() - began)
        done = _families(models, found).get(family.name, dict.fromkeys(_COUNTED, 0))
        console.print(
            _words(family, pair, done) + _rest(took, number, len(parts)),
            highlight=False,
            soft_wrap=True,
        )
    result = score(outcomes, TRAINED_ROLES)
    return result | {
        "models": sum(not one.decoy for one in chosen),
        "unsolved": left,
        "families": _families(chosen, outcomes),
        "seconds": time.perf_counter() - start,
    }


def _words(family: TrainedFamily, seeds: Sequence[int], done: Mapping[str, int]) -> str:
    models, claims, mistakes = (done[name] for name in _COUNTED)
    which = ", ".join(map(str, seeds))
    return (
        f"{family.name} {which}: {models} of {len(seeds)} learned their task, {claims} claims, "
        f"{mistakes} mistakes"
    )


def _rest(took: Sequence[float], done: int, of: int) -> str:
    """Return an estimate of the time left in words, from the durations of those pairs that were
    measured and not just read."""
    worked = [seconds for seconds in took if seconds > _READ]
    minutes = math.ceil((of - done) * sum(worked) / max(len(worked), 1) / 60)
    return f" ({done} of {of}, about {minutes} min left)" if worked else f" ({done} of {of})"


def _families(
    chosen: Sequence[TrainedSubject], outcomes: Sequence[Outcome]
) -> dict[str, dict[str, int]]:
    """Return family → its numbers of models, claims and mistakes."""
    found: dict[str, Counter[str]] = {}
    for subject, one in zip(chosen, outcomes, strict=True):
        if subject.decoy:
            continue
        told = {c for c in one["found"] if c[:3] not in one["unscored"]} - one["exempt"]
        row = found.setdefault(subject.family, Counter(dict.fromkeys(_COUNTED, 0)))
        row["models"] += 1
        row["claims"] += len(one["truth"])
        row["mistakes"] += len(told ^ one["truth"])
    return {name: dict(row) for name, row in found.items()}


_DETECTORS = "probes/roles/"


def depends_on(run: TrainingRun, *, detectors: bool, given: Sequence[Any] = ()) -> str:
    """Return a SHA-256 of everything that a measurement depends on.

    These are the run, the numbers in ``given``, and the sources of tasks, models and measurements;
    with ``detectors`` those of the role detectors too.
    """
    text = json.dumps([digest([run]), _sources(detectors), *given])
    return hashlib.sha256(text.encode()).hexdigest()


def measure_once(file: Path, name: str, of: str, measure: Callable[[], Any]) -> Any:
    """Return a measurement as JSON data: from a file, if it is there for the same ``of``, or else
    by measuring it.

    Args:
        file: The model's file of measurements; it is created if there is none.
        name: The name of the measurement.
        of: The hash of what it depends on (:func:`depends_on`).
        measure: A function that measures.

    Raises:
        OutputError: if the file cannot be written.
    """
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if known.get(name, {}).get("of") != of:
        known[name] = {"of": of, "found": measure()}
        file.parent.mkdir(parents=True, exist_ok=True)
        with output_file(file, overwrite=True) as draft:
            draft.write_text(json.dumps(known), "utf-8")
    return known[name]["found"]


@cache
def _sources(detectors: bool) -> str:
    root, found = Path(prooflens.__file__).parents[1], hashlib.sha256()
    for package in ("interp", "probes"):
        for file in sorted((root / package).rglob("*.py")):
            if detectors or _DETECTORS not in file.as_posix():
                found.update(file.read_bytes())
    return found.hexdigest()
