"""Roles of trained models against exchange: the ``trained`` block of the benchmark of roles.

    python -m analyses.benchmarks.roles --profile trained --folder FOLDER [--seeds N] [--tune]

Families of recipes are trained (or read from the folder), a model a seed; ``pl.locate`` says what
each component holds, on rows of its own, and roles are found on others. Decoys are untrained models
of every family's shape, on the same rows.

JSON keys of ``trained``: those of the other profiles, and ``unsolved`` (models that did not learn
their task and are left out), ``models`` (those that are scored), ``families`` (of each the number
of models, of claims and of mistakes).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from analyses.benchmarks.pool import measured
from analyses.benchmarks.scoring import ROLES, Claim, Outcome, score
from analyses.benchmarks.trained_models import (
    FAMILIES,
    SCORED,
    TUNED,
    runs_of,
    solved,
    trained_family,
)
from analyses.benchmarks.trained_truth import claims_of
from interp.models.kinds import build
from interp.tasks.base import answers_of, memories_of
from interp.tasks.counterfactual import sought_of
from probes.locate import locate
from probes.roles import find_roles

__all__ = ["TRAINED_ROLES", "TrainedSubject", "measure_trained", "measured_trained", "subjects"]

TRAINED_ROLES = (
    *(role for role in ROLES if role not in ("sink", "local", "uniform")),
    "memory-mixture",
    "counting",
)
_ROWS, _PAIRS = 96, 192
_TARGETED = ("memory-location", "readout", "nested-round")


@dataclass(frozen=True)
class TrainedSubject:
    """One model of a family, or an untrained one of its shape (``decoy``)."""

    family: str
    model: Any
    task: Any
    seed: int
    decoy: bool = False

    @property
    def name(self) -> str:
        """The family's with the seed."""
        return f"{'untrained ' * self.decoy}{self.family}-{self.seed}"


def subjects(
    folder: Path, seeds: Sequence[int], only: str = ""
) -> tuple[list[TrainedSubject], list[str]]:
    """Solved models and a decoy a family, and the names of those that did not learn."""
    found, left = [], []
    for family in (family for family in FAMILIES if only in family.name):
        for pair in (seeds[i : i + 2] for i in range(0, len(seeds), 2)):
            for run, fit in trained_family(family, pair, folder):
                if solved(family, fit):
                    one = TrainedSubject(family.name, fit.model, run.task, run.training.seed)
                    found.append(one)
                else:
                    left.append(run.name)
        (run,) = runs_of(family, seeds[:1])
        fresh = build(run.spec, seed=run.training.seed + 1000).eval()
        found.append(TrainedSubject(family.name, fresh, run.task, run.training.seed, decoy=True))
    return found, left


def measure_trained(subject: TrainedSubject) -> Outcome:
    """Locate one model's latents, find its roles on other rows, and set one beside the other."""
    torch.set_num_threads(1)
    start, task, seed = time.perf_counter(), subject.task, subject.seed
    truth: set[Claim] = set()
    unknown: set[tuple[str, int, int]] = set()
    also: set[Claim] = set()
    if not subject.decoy:
        table = locate(subject.model, task, rows=_PAIRS, seed=seed)
        truth, unknown, also = claims_of(table, task)
    roles = find_roles(
        subject.model,
        task.sample(_ROWS, seed=seed + 5000),
        memories=memories_of(task),
        answers=answers_of(task),
        sought=sought_of(task),
        targets=False,
        seed=seed,
    )
    sure = roles[roles["status"] == "confirmed"]
    return Outcome(
        name=subject.name,
        decoy=subject.decoy,
        truth=truth,
        found={_claim(row) for row in sure.itertuples()},
        unscored=unknown,
        exempt=also,
        peers=None,
        seconds=time.perf_counter() - start,
    )


def _claim(row: Any) -> Claim:
    role = "memory-location" if row.role == "memory-correction" else row.role
    target = row.target if role in _TARGETED else ""
    return row.component, int(row.layer), int(row.head), role, target


def measured_trained(
    folder: Path, *, seeds: int, tuning: bool, workers: int, only: str = ""
) -> dict[str, Any]:
    """The ``trained`` block."""
    start = time.perf_counter()
    chosen, left = subjects(folder, TUNED if tuning else SCORED[:seeds], only)
    outcomes = list(measured(measure_trained, chosen, workers))
    result = score(outcomes, TRAINED_ROLES)
    return result | {
        "models": sum(not one.decoy for one in chosen),
        "unsolved": left,
        "families": _families(chosen, outcomes),
        "seconds": time.perf_counter() - start,
    }


def _families(
    chosen: Sequence[TrainedSubject], outcomes: Sequence[Outcome]
) -> dict[str, dict[str, int]]:
    """Family → how many models, claims and mistakes."""
    found: dict[str, Counter[str]] = {}
    for subject, one in zip(chosen, outcomes, strict=True):
        if subject.decoy:
            continue
        told = {c for c in one["found"] if c[:3] not in one["unscored"]} - one["exempt"]
        row = found.setdefault(subject.family, Counter())
        row["models"] += 1
        row["claims"] += len(one["truth"])
        row["mistakes"] += len(told ^ one["truth"])
    return {name: dict(row) for name, row in found.items()}
