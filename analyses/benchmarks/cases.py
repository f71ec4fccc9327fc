"""The task models that role detectors are judged on, and those they were tuned on.

Every family of constructions, plain and hidden, and decoys of three sorts: heads whose pattern is
right and whose output is unread, such heads that write nothing (or the same from every key), and
models with random weights in the shapes of each family.

What was tuned on is not scored: other tasks (of relations other things that are passed on, of
templates, memories and languages other ones), other sizes, other seeds, other rows. Gated memories
are left out: what their heads fetch are lags that the adaptive task has no name for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from analyses.benchmarks.proof_cases import (
    COUPLINGS,
    DECOYS,
    PROGRAMS,
    RELATIONS,
    TEMPLATES,
    TUNED_DECOYS,
    TUNED_RELATIONS,
    compiled_case,
)
from prooflens.architectures import SequenceTransformer
from prooflens.proofs import (
    Case,
    Construction,
    Mechanism,
    construct_adaptive_memory,
    construct_fixed_memory,
    construct_kernel_memory,
    construct_pod,
    construct_template,
    random_basis,
)
from prooflens.tasks import (
    AdaptiveMemory,
    Batch,
    FixedMemory,
    KernelMemory,
    PodCoupling,
    RealMemory,
    TemplateTask,
    induction_style,
)

__all__ = ["Subject", "decoys", "subjects"]

_FEW_POSITIONS = 512
"""Number of rows that are drawn of a task that is scored at a single position of each row."""

_AT_THE_END = ("dyck-1", "anbncn")
"""Languages whose programs are asked at the last position of a string only."""


@dataclass(frozen=True)
class Subject:
    """A construction to be measured, with the way it is measured.

    Attributes:
        case: The construction to build.
        seed: Seed of the rows, and of the random basis.
        hidden: Whether it is measured in a random basis.
        decoy: Whether it is a decoy, in which no role should be found.
        peer: Whether TransformerLens' detector is run on it too.
        rows: The number of rows of its task that are drawn.
    """

    case: Case
    seed: int
    hidden: bool = False
    decoy: bool = False
    peer: bool = False
    rows: int = 96

    @property
    def name(self) -> str:
        """The name of the case, with ``hidden`` appended where it is."""
        return self.case.name + (" hidden" if self.hidden and not self.decoy else "")

    def build(self) -> tuple[Construction, Batch]:
        """Return the construction, in a random basis if it is hidden, and rows of its task."""
        built = self.case.construct()
        batch = built.task.sample(self.rows, seed=self.seed)
        return random_basis(built, self.seed) if self.hidden else built, batch


def subjects(*, tuning: bool = False) -> list[Subject]:
    """Return every construction twice: as it was written, and hidden in a random basis."""
    plain = list(_tuning_subjects() if tuning else _scoring_subjects())
    hidden = [replace(one, hidden=True, seed=one.seed + 1) for one in plain]
    return plain + hidden


def decoys(*, tuning: bool = False) -> list[Subject]:
    """Return models in which no role should be found."""
    found = []
    for number, case in enumerate(TUNED_DECOYS if tuning else DECOYS):
        seed = (600 if tuning else 1900) + number
        found.append(_decoy("decoy", case, case.construct, seed, hidden=bool(number % 2)))
    for number, case in enumerate(_memories(_TUNED_MEMORIES[:1] if tuning else _MEMORIES[:3])):
        unread = partial(_unread, case.construct)
        seed = (650 if tuning else 2950) + number
        found.append(_decoy("decoy unread", case, unread, seed, hidden=bool(number % 2)))
    shapes = list(_tuning_subjects() if tuning else _scoring_subjects())[:: 3 if tuning else 4]
    for number, one in enumerate(shapes):
        seed = (7000 if tuning else 28_000) + number
        random = partial(_random, one.case.construct, seed)
        found.append(_decoy("random", one.case, random, seed, rows=one.rows))
    return found


def _decoy(
    sort: str, case: Case, construct: Callable[[], Construction], seed: int, **options: Any
) -> Subject:
    named = Case(f"{sort} {case.name}", construct, case.family)
    return Subject(named, seed, decoy=True, **options)


def _random(construct: Callable[[], Construction], seed: int) -> Construction:
    built = construct()
    model = SequenceTransformer(built.model.spec, seed=seed)
    return replace(built, model=model, mechanism=Mechanism(()))


def _unread(construct: Callable[[], Construction]) -> Construction:
    """Return a construction whose heads fetch the memories and whose FFN computes f, but whose
    output reads neither."""
    built = construct()
    with torch.no_grad():
        now = built.model.embed.W_E[0]
        built.model.unembed.W_U[:, 0] = now / now.square().sum()
    return replace(built, mechanism=Mechanism(()))


def _number_cases(cases: Iterable[Case], start: int, **options: Any) -> Iterator[Subject]:
    for number, case in enumerate(cases):
        yield Subject(case, start + 2 * number, **options)


def _memories(tasks: tuple[Any, ...]) -> Iterator[Case]:
    made: dict[type, Callable[..., Construction]] = {
        FixedMemory: construct_fixed_memory,
        AdaptiveMemory: construct_adaptive_memory,
        RealMemory: construct_kernel_memory,
        KernelMemory: construct_kernel_memory,
    }
    return (Case(task.name, partial(made[type(task)], task)) for task in tasks)


def _couplings(tasks: tuple[tuple[PodCoupling, int], ...], n: int) -> Iterator[Case]:
    """Yield each coupling with as few features as can hold it, and with n features, as many as
    trained models have."""
    for features in (None, n):
        for task, width in tasks:
            name = f"{task.name}-{width}" + (f"-of-{features}" if features else "")
            yield Case(name, partial(construct_pod, task, width, n=features))


def _scoring_subjects() -> Iterator[Subject]:
    yield from _number_cases(RELATIONS, 22_000, peer=True)
    templates = (Case(f"template {case.name}", case.construct) for case in TEMPLATES)
    yield from _number_cases(templates, 23_000, rows=_FEW_POSITIONS)
    yield from _number_cases(_memories(_MEMORIES), 34_000)
    programs = [case for case in PROGRAMS if case.family != "L_3"]
    for number, case in enumerate(programs):
        rows = _FEW_POSITIONS if case.family in _AT_THE_END else 96
        yield Subject(case, 25_000 + 2 * number, rows=rows)
    yield from _number_cases(_couplings(tuple(COUPLINGS[::4]), 32), 26_000)


def _dependent_table(lags: tuple[int, ...], length: int, seed: int) -> FixedMemory:
    """Return a memory task with a random table whose value depends on every argument; seeds are
    tried from the given one on.

    If it did not depend on one, the memory of that argument would be fetched for nothing, and no
    cause could be found.
    """
    while True:
        task = FixedMemory(lags, "table", length=length, table_seed=seed)
        table = task.truth_table()
        arguments = range(len(lags) + 1)
        if all(any(table[c] != table[_flip_sign(c, i)] for c in table) for i in arguments):
            return task
        seed += 1


def _flip_sign(corner: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*corner[:place], -corner[place], *corner[place + 1 :])


_MEMORIES = (
    FixedMemory((1, 3), "parity", length=23),
    FixedMemory((1, 2, 4), "parity", length=27),
    FixedMemory((2, 4), "majority", length=25),
    _dependent_table((4,), 21, seed=20),
    _dependent_table((2, 3), 24, seed=30),
    RealMemory((1, 4), "mean", length=23),
    RealMemory((1, 2), "maximum", length=26),
    KernelMemory(("light(4, 1.5)", "bump(3, 2)"), "network", length=42),
    AdaptiveMemory((1, 2), rounds=1, length=21, table_seed=20),
    AdaptiveMemory((1, 3), rounds=1, length=23, table_seed=21),
    AdaptiveMemory((1, 2), rounds=2, readout="parity", length=24, table_seed=22),
    AdaptiveMemory((1, 2, 3), rounds=2, readout="parity", length=26, table_seed=23),
    AdaptiveMemory((1, 2), 1, 1, readout="parity", length=27, table_seed=24),
)


def _tuning_subjects() -> Iterator[Subject]:
    yield from _number_cases(TUNED_RELATIONS, 100, peer=True)
    tasks = (_CYCLES, induction_style(4, train=(0, 12), test=(12, 24)))
    templates = (
        Case(f"{task.name}-{n}", partial(construct_template, task, readout_layers=n))
        for task in tasks
        for n in (1, 2)
    )
    yield from _number_cases(templates, 300, rows=_FEW_POSITIONS)
    yield from _number_cases(_memories(_TUNED_MEMORIES), 400)
    yield from _number_cases(_TUNED_PROGRAMS, 500)
    yield from _number_cases(_couplings(_TUNED_COUPLINGS, 24), 550)


_CYCLES = TemplateTask(
    ("αβγα", "αβγβ", "αββγ"), (1.0, -1.0, 2.0), train=(0, 12), test=(12, 24), title="cycles"
)
_TUNED_MEMORIES = (
    FixedMemory((1, 2), "multiplexer", length=18),
    FixedMemory((1, 5), "majority", length=22),
    RealMemory((2,), "waves", inputs="signs", length=21),
    KernelMemory(("light(6, 1.3)",), length=36),
    AdaptiveMemory((2, 3), rounds=1, readout="parity", length=19, table_seed=11),
    AdaptiveMemory((1, 3), rounds=2, readout="majority", length=25, table_seed=12),
)
_TUNED_PROGRAMS = (
    compiled_case("L_3", ((15, 15),)),
    compiled_case("J_ab", ((18, 18),)),
    compiled_case("J_aba", ((26, 26),), "sign"),
    compiled_case("J_aab", ((28, 28),)),
    compiled_case("J_abb", ((34, 34),), "sign"),
    compiled_case("J_baab", ((8, 20),), "sign"),
    compiled_case("J_abc", ((8, 20),)),
)
_TUNED_COUPLINGS = ((PodCoupling(5, features=7), 5), (PodCoupling(3, features=7), 1))
