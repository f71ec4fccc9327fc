"""Constructions in many sizes, on which role detectors are judged, and those they were tuned on.

Relations of two tokens (with decoys, whose pattern is right and on which nothing depends), template
tasks, compiled programs, and couplings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from prooflens.proofs import (
    Case,
    Construction,
    Precision,
    compile_program,
    construct_relation,
    construct_template,
)
from prooflens.tasks import (
    NAMED,
    Membership,
    PodCoupling,
    PrefixPrediction,
    TemplateTask,
    TokenRelation,
    aabb_abab,
    aba_abb,
    copying,
    random_task,
    same_different,
)

__all__ = [
    "COUPLINGS",
    "DECOYS",
    "PROGRAMS",
    "RELATIONS",
    "TEMPLATES",
    "TUNED_DECOYS",
    "TUNED_RELATIONS",
    "compiled_case",
]

_SIZES = ((10, 14, 2), (12, 17, 3), (16, 24, 1), (20, 21, 4), (15, 28, 2))
_TUNED_SIZES = ((11, 15, 2), (13, 22, 3))
"""(Number of symbols, length, heads per layer) of the scored cases and of those used for tuning."""

_VALUES = ("copy", "negative", "relabel", "classes")
_KEPT: dict[str, str] = {
    "previous-token": "classes",
    "duplicate-token": "copy",
    "induction": "classes",
    "sink": "copy",
    "uniform": "classes",
    "local": "copy",
    "dense": "classes",
    "mirror": "classes",
    "halved": "negative",
    "smaller": "classes",
    "greater": "negative",
    "periodic": "copy",
    "all-but-first": "copy",
}
"""Relation → the value that heads pass on in tuning cases. Scored cases of the relation use the
other values."""


def _relation(
    relation: str,
    value: str,
    size: tuple[int, int, int],
    number: int,
    wiring: Any = "used",
) -> Case:
    symbols, length, heads = size
    task: Any = TokenRelation(
        relation,  # type: ignore[arg-type]
        value,  # type: ignore[arg-type]
        symbols=symbols,
        length=length,
        window=3 + number % 3,
        seed=number,
    )
    strength = 20.0 + 5 * (number % 5)
    name = task.name + ("" if wiring == "used" else f"-{wiring}")
    construct = partial(
        construct_relation, task, heads=heads, strength=strength, seed=number, wiring=wiring
    )
    return Case(name, construct, relation)


def _other_value(relation: str, number: int) -> str:
    others = [value for value in _VALUES if value != _KEPT[relation]]
    return others[number % len(others)]


_IN_THREE: tuple[str, ...] = (
    "mirror",
    "halved",
    "smaller",
    "greater",
    "periodic",
    "all-but-first",
)
"""Relations that are scored in three sizes instead of all: another relation tests the same role, or
more sizes would test nothing new."""

RELATIONS: tuple[Case, ...] = tuple(
    _relation(relation, _other_value(relation, number + place), size, 500 + number)
    for place, relation in enumerate(_KEPT)
    for number, size in enumerate(_SIZES[: 3 if relation in _IN_THREE else None])
)
"""A scored case for every relation in every size, or in three sizes (``_IN_THREE``). The value that
is passed on alternates."""

TUNED_RELATIONS: tuple[Case, ...] = tuple(
    _relation(relation, _KEPT[relation], size, 300 + number)
    for relation in _KEPT
    for number, size in enumerate(_TUNED_SIZES)
)

_UNUSED: tuple[str, ...] = ("unread", "silent", "constant")

DECOYS: tuple[Case, ...] = tuple(
    _relation(relation, _other_value(relation, place), size, 600 + place, wiring)
    for wiring in _UNUSED
    for place, relation in enumerate(_KEPT)
    for size in (_SIZES[place % len(_SIZES)],)
)
"""For every relation, models with the right attention pattern on which nothing depends."""

TUNED_DECOYS: tuple[Case, ...] = tuple(
    _relation(relation, _KEPT[relation], _TUNED_SIZES[place % 2], 400 + place, _UNUSED[place % 3])
    for place, relation in enumerate(_KEPT)
)


def _template(task: TemplateTask, **options: Any) -> Case:
    """Return a case with a name: a template task with the options of its construction."""
    name = "-".join([task.name, *(f"{k}={v}" for k, v in options.items())])
    return Case(name, partial(construct_template, task, **options))


_NAMED: dict[str, Any] = dict(NAMED)
_SMALL: dict[str, Any] = {"train": (0, 10), "test": (10, 20)}
_LARGE: dict[str, Any] = {"train": (0, 24), "test": (24, 48)}

TEMPLATES = (
    _template(same_different(**_SMALL)),
    _template(same_different(**_LARGE), dimension=40, seed=1),
    _template(aba_abb(**_SMALL)),
    _template(aba_abb(**_LARGE), readout_layers=2),
    _template(aabb_abab(**_SMALL), readout_layers=2),
    _template(_NAMED["match-to-sample"](**_SMALL)),
    _template(_NAMED["match-to-sample"](**_LARGE), dimension=64, seed=2),
    _template(random_task(5, 4, wildcards=2, seed=0, **_SMALL)),
    _template(random_task(4, 5, wildcards=2, regular=1, seed=1, **_SMALL), readout_layers=2),
    _template(copying(**_SMALL)),
    _template(copying("αββγ", "α", **_LARGE)),
    _template(copying("αβγδ", "β", **_LARGE), dimension=192, seed=3),
    _template(_NAMED["majority"](3, **_SMALL)),
    _template(_NAMED["majority"](5, **_SMALL)),
    _template(_NAMED["distribution-of-three"](**_SMALL)),
    _template(_NAMED["identity-rules"](**_LARGE)),
    _template(_NAMED["identity-rules"](**_SMALL), readout_layers=2),
    _template(random_task(4, 4, wildcards=3, symbolic=True, seed=2, **_SMALL)),
)
"""Constructions for template tasks. All have equality heads except the three copying tasks; the
last nine copy."""


def compiled_case(
    language: str,
    bins: tuple[tuple[int, int], ...],
    precision: Precision = "ramp",
    *,
    membership: bool = False,
) -> Case:
    """Return a case whose model is the compiled program that answers a question about strings of a
    language.

    Args:
        language: The name of the language.
        bins: The ranges of lengths, (shortest, longest).
        precision: How the compiled program computes bits: ``ramp`` or ``sign``.
        membership: Whether the question is asked once, at the end: is the string in the language?
            By default the strings are in the language and every position asks for what may follow.

    Returns:
        The case; the ``task`` of its construction is the question.
    """
    question = Membership if membership else PrefixPrediction
    task = question(language, bins, targets="bits")
    name = f"compiled-{language}-{task.longest}-{precision}"
    return Case(name, partial(_construct, name, task, precision), language)


def _construct(
    name: str, task: PrefixPrediction | Membership, precision: Precision
) -> Construction:
    made = compile_program(task.program, longest=task.longest, precision=precision)
    return replace(made, name=name, task=task)


PROGRAMS = (
    compiled_case("majority", ((20, 24),)),
    compiled_case("L_3", ((24, 24),)),
    compiled_case("L_3", ((60, 60),), "sign"),
    compiled_case("L_4", ((24, 24),)),
    compiled_case("L_4", ((48, 48),), "sign"),
    compiled_case("dyck-1", ((24, 24),), membership=True),
    compiled_case("J_abba", ((32, 32),)),
    compiled_case("anbncn", ((18, 18),), membership=True),
    compiled_case("L_5", ((32, 32),)),
    compiled_case("J_abab", ((40, 40),), "sign"),
    compiled_case("L_6", ((40, 40),)),
    compiled_case("L_6", ((64, 64),), "sign"),
)
"""Compiled programs. Depth 1: majority and L_3; 2: L_4, Dyck-1 and aⁿbⁿcⁿ; 3: L_5 and J_abba; 4:
L_6 and J_abab."""


def _coupling_tasks() -> list[tuple[PodCoupling, int]]:
    """Return pairs of a task and a head width on which detectors are scored. Width 1 truncates the
    kernel, the kernel's rank is exact, and width 8 is wider than that."""
    ranks = [PodCoupling(2), PodCoupling(6), PodCoupling(4, left="sine", right="cosine")]
    ranks += [PodCoupling(3, left="legendre", right="legendre"), PodCoupling(6, mask_self=True)]
    exact = [replace(task, features=8) for task in ranks]
    return [(task, m) for task in exact for m in (1, int(task.rank), 8)]


COUPLINGS: list[tuple[PodCoupling, int]] = _coupling_tasks()
"""Tasks and head widths m_h, for :func:`prooflens.proofs.construct_pod`."""
