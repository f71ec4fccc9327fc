"""When is a role confirmed? The rule that all roles share, and the row it gives.

    behaviour   every test has a score of at least its floor and a q below the level
    cause       the same, for what changes without the component
    confirmed   both, and no 95 % interval reaches further down than half its floor
    candidate   behaviour alone;   no row   otherwise

q is Benjamini–Hochberg over all components that were put to the same test. Without a model that can
be run (a store alone) there is no cause, and nothing is more than a candidate.

A confirmed role says what a component does on these inputs; elsewhere it may do more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd

from interp.stats.head_table import adjust

__all__ = ["ROLE_COLUMNS", "Found", "Test", "decide", "holds", "no_roles"]

ROLE_COLUMNS = (
    "component",
    "layer",
    "head",
    "group",
    "role",
    "target",
    "status",
    "strength",
    "p",
    "q",
    "effect",
    "evidence",
    "missing",
)
"""A role table's columns; ``missing`` says which tests could not be made, and why. What
:func:`decide` returns has one more, ``tests``: JSON text, the tests that the row rests on, each
with ``name``, ``kind``, ``score``, ``floor``, ``p``, ``q``, ``low`` and ``high``."""


@dataclass(frozen=True)
class Test:
    """One score that a role rests on, with its floor.

    Attributes:
        name: What is measured, in words and with its unit.
        score: The measured score.
        floor: The least score that passes.
        p: Against the test's null; 0 for a test of size alone.
        low, high: The score's 95 % interval; NaN where none was taken, as of what is read off
            weights, of p of a null, and of differences of two scores that have their own.
        family: Tests of one family are adjusted together for false discovery.
        untested: Why the test could not be made; it fails then. Empty where it was made.
    """

    __test__ = False

    name: str
    score: float
    floor: float
    p: float = 0.0
    low: float = float("nan")
    high: float = float("nan")
    family: str = ""
    untested: str = ""

    @classmethod
    def too_few(cls, what: str, needed: int, floor: float, family: str = "") -> Test:
        """The test that could not be made, because it needs more rows."""
        words = f"too few rows for {what}: needs {needed}"
        return cls(words, 0.0, floor, 1.0, family=family, untested=words)

    @property
    def wide(self) -> bool:
        """Whether the interval reaches below half the floor although the score is above the
        floor."""
        return self.score >= self.floor and self.low < self.floor / 2


@dataclass(frozen=True)
class Found:
    """A role that a component may have: what it does, and what is lost without it.

    Attributes:
        component, layer, head, group: The component that was tested.
        role, target: The role that it may play, and for what.
        strength: The number by which the role is measured.
        behaviour: The tests that must pass for a row in the role table.
        cause: Tests that must pass as well to confirm it; None where nothing could be run.
        missing: What could not be tested, and why; empty where everything was.
    """

    component: str
    layer: int
    role: str
    strength: float
    behaviour: Sequence[Test]
    cause: Sequence[Test] | None
    head: int = -1
    group: str = ""
    target: str = ""
    missing: str = ""


_NO_CAUSE = "cause: no model could be run"


def holds(tests: Sequence[Test]) -> bool:
    """Whether every score is at least its floor, whatever its q."""
    return all(test.score >= test.floor for test in tests)


def no_roles() -> pd.DataFrame:
    """An empty role table."""
    return pd.DataFrame(columns=[*ROLE_COLUMNS, "tests"])


def decide(found: Sequence[Found], *, level: float = 0.01) -> pd.DataFrame:
    """Decide the role table from everything that was tested.

    Args:
        found: All that were tested, also those without a role: they are part of the families.
        level: The false-discovery rate that every q must stay below.
    """
    q = _adjusted(found)
    rows = [row for k, one in enumerate(found) if (row := _row(one, q, k, level)) is not None]
    return pd.DataFrame(rows, columns=[*ROLE_COLUMNS, "tests"])


def _tests(one: Found) -> list[Test]:
    return [*one.behaviour, *(one.cause or ())]


def _adjusted(found: Sequence[Found]) -> dict[tuple[int, int], float]:
    """The q of every test, adjusted within each family."""
    families: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for k, one in enumerate(found):
        for i, test in enumerate(_tests(one)):
            families.setdefault((one.role, test.family or test.name), []).append((k, i))
    q: dict[tuple[int, int], float] = {}
    for members in families.values():
        p = np.array([_tests(found[k])[i].p for k, i in members])
        q.update(zip(members, adjust(p).tolist(), strict=True))
    return q


def _row(
    one: Found, q: Mapping[tuple[int, int], float], k: int, level: float
) -> dict[str, Any] | None:
    tests = _tests(one)
    passed = [t.score >= t.floor and q[k, i] < level for i, t in enumerate(tests)]
    if not all(passed[: len(one.behaviour)]):
        return None
    caused = bool(one.cause) and all(passed) and not any(test.wide for test in tests)
    last = one.cause[-1].score if one.cause else float("nan")
    return {
        "component": one.component,
        "layer": one.layer,
        "head": one.head,
        "group": one.group,
        "role": one.role,
        "target": one.target,
        "status": "confirmed" if caused else "candidate",
        "strength": one.strength,
        "p": max(t.p for t in tests),
        "q": max(q[k, i] for i in range(len(tests))),
        "effect": last,
        "evidence": _sentence(one),
        "missing": _lacking(one),
        "tests": json.dumps([_data(one, i, q[k, i]) for i in range(len(tests))]),
    }


def _lacking(one: Found) -> str:
    """What could not be tested, and why."""
    if one.cause is None:
        return _NO_CAUSE
    reasons = dict.fromkeys(test.untested for test in one.cause if test.untested)
    return "; ".join(filter(None, (one.missing, *reasons)))


def _data(one: Found, i: int, q: float) -> dict[str, Any]:
    """A test as JSON data, with null for numbers that were not computed."""
    test, kind = _tests(one)[i], "behaviour" if i < len(one.behaviour) else "cause"
    numbers = {
        "score": test.score,
        "floor": test.floor,
        "p": test.p,
        "q": q,
        "low": test.low,
        "high": test.high,
    }
    told = {name: float(value) if isfinite(value) else None for name, value in numbers.items()}
    return {"name": test.name, "kind": kind} | told


def _sentence(one: Found) -> str:
    told = "; ".join(_words(test) for test in one.behaviour)
    if one.cause is None:
        return f"{told}; no model could be run, so no cause was sought"
    return f"{told}; {'; '.join(_words(test) for test in one.cause)}"


def _words(test: Test) -> str:
    if test.untested:
        return test.untested
    wide = f", an interval too wide (from {test.low:.2f}) to count" if test.wide else ""
    short = f", below the floor of {test.floor:.2g}" if test.score < test.floor else ""
    return f"{test.name} {test.score:.2f}{short}{wide}"
