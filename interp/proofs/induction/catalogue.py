"""The cases that role detectors are judged on: relations in several sizes, and decoys of each.

Sizes, seeds and what is passed on differ from case to case. Rules are tuned on others
(:data:`TUNED`): of each relation one thing that is passed on is kept for tuning, in other sizes and
with other seeds, and is in no case.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

from interp.proofs.case import Case
from interp.proofs.induction.relation import Wiring, construct_relation
from interp.tasks.relation import Relation, TokenRelation, Value

__all__ = ["CASES", "DECOYS", "TUNED", "TUNED_DECOYS"]

_SIZES = ((10, 14, 2), (12, 17, 3), (16, 24, 1), (20, 21, 4), (15, 28, 2))
_TUNED_SIZES = ((11, 15, 2), (13, 22, 3))
"""The number of symbols, the length and the heads per layer of the cases used for tuning."""

_KEPT: dict[Relation, Value] = {
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
"""The value of each relation that is passed on in tuning cases only."""


def _case(
    relation: Relation,
    value: Value,
    size: tuple[int, int, int],
    number: int,
    wiring: Wiring = "used",
) -> Case:
    symbols, length, heads = size
    task = TokenRelation(
        relation, value, symbols=symbols, length=length, window=3 + number % 3, seed=number
    )
    strength = 20.0 + 5 * (number % 5)
    name = task.name + ("" if wiring == "used" else f"-{wiring}")
    construct = partial(
        construct_relation, task, heads=heads, strength=strength, seed=number, wiring=wiring
    )
    return Case(name, construct, relation)


def _passed_on(relation: Relation, number: int) -> Value:
    others = [value for value in get_args(Value) if value != _KEPT[relation]]
    return others[number % len(others)]


_IN_THREE: tuple[Relation, ...] = (
    "mirror",
    "halved",
    "smaller",
    "greater",
    "periodic",
    "all-but-first",
)
"""Relations of roles that another relation shows as well, or that one size tells as much of."""

CASES: tuple[Case, ...] = tuple(
    _case(relation, _passed_on(relation, number + place), size, 500 + number)
    for place, relation in enumerate(get_args(Relation))
    for number, size in enumerate(_SIZES[: 3 if relation in _IN_THREE else None])
)
"""Every relation in every size, some in three; the value that is passed on alternates."""

TUNED: tuple[Case, ...] = tuple(
    _case(relation, _KEPT[relation], size, 300 + number)
    for relation in get_args(Relation)
    for number, size in enumerate(_TUNED_SIZES)
)

_UNUSED: tuple[Wiring, ...] = ("unread", "silent", "constant")

DECOYS: tuple[Case, ...] = tuple(
    _case(relation, _passed_on(relation, place), size, 600 + place, wiring)
    for wiring in _UNUSED
    for place, relation in enumerate(get_args(Relation))
    for size in (_SIZES[place % len(_SIZES)],)
)
"""Models with the right attention pattern for every relation, on which nothing depends."""

TUNED_DECOYS: tuple[Case, ...] = tuple(
    _case(relation, _KEPT[relation], _TUNED_SIZES[place % 2], 400 + place, _UNUSED[place % 3])
    for place, relation in enumerate(get_args(Relation))
)
