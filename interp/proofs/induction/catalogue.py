"""The cases that detectors are judged on: every relation in five sizes, and decoys of each.

Sizes, seeds and what is passed on differ from case to case; rules are tuned on others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

from interp.proofs.induction.relation import Wiring, construct_relation
from interp.proofs.mechanism import Construction
from interp.tasks.relation import Relation, TokenRelation, Value

__all__ = ["CASES", "DECOYS", "Case"]

Case = Callable[[], Construction]
"""Builds one construction."""

_SIZES = ((10, 13, 1), (12, 17, 3), (16, 24, 2), (20, 20, 4), (14, 28, 2))
"""Symbols, length and heads of a layer."""


def _case(relation: Relation, value: Value, size: int, wiring: Wiring = "used") -> Construction:
    symbols, length, heads = _SIZES[size]
    task = TokenRelation(
        relation, value, symbols=symbols, length=length, window=3 + size % 3, seed=100 + size
    )
    return construct_relation(
        task, heads=heads, strength=20.0 + 5 * size, seed=100 + size, wiring=wiring
    )


_VALUES: tuple[Value, ...] = ("copy", "relabel", "negative", "classes", "copy")

CASES: tuple[Case, ...] = tuple(
    partial(_case, relation, _VALUES[(size + number) % len(_VALUES)], size)
    for number, relation in enumerate(get_args(Relation))
    for size in range(len(_SIZES))
)
"""Every relation in every size; what is passed on goes round."""

_UNUSED: tuple[Wiring, ...] = ("unread", "silent", "constant")

DECOYS: tuple[Case, ...] = tuple(
    partial(_case, relation, "copy" if number % 2 else "relabel", number % len(_SIZES), wiring)
    for wiring in _UNUSED
    for number, relation in enumerate(get_args(Relation))
)
"""The right pattern in every relation, with nothing that depends on it."""
