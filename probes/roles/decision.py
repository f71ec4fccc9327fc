"""When is a role confirmed? The rule that all roles share, and the row it gives.

    behaviour     what the component is seen to do; without it there is no row
    cause         what is lost without the component, alone or together with its group
    specificity   the loss is due to the role: little is lost where the role's event does not happen
    transfer      the cause holds on rows that the role was not found on

A test passes with a score of at least its floor, a q below the level, and a 95 % interval that does
not reach further down than half the floor. One whose score is below its floor has failed; one that
only lacks rows (q or interval) is undecided. Specificity and transfer fail only by their whole
interval: that a loss is not due to the role is a claim too, and one that needs to be shown.

    confirmed                 all pass that were put
    necessary, not specific   something is lost without the component, and not (or not only)
                              through this: another test of the cause fails, or specificity does
    rejected                  nothing is lost without it, or not on other rows: the behaviour is
                              there, and the model does not rely on it
    candidate                 a test could not be put, or is undecided: ``missing`` says which

q is Benjamini–Hochberg over all components that were asked for the role. Those without its
behaviour are put to no further test and count there with p = 1: to choose first, and to correct for
the chosen alone, would be to look twice and pay once. Without a model that can be run (a store
alone) there is no cause, and nothing is more than a candidate. A role whose event happens at every
position has no controls: ``missing`` says so, and its other tests decide.

A confirmed role must be stable: where its scores reach their floors on fewer than nine in ten
resamples of the rows, it is a candidate, and ``missing`` says so.

    stability   the share of 200 resamples of the rows on which every score is at least its floor
    halves      the share of 100 splits of the rows in two on whose halves the scores say the same:
                all at least their floors, or not all

There a score is the mean of what its rows showed. That it is significant, and its interval, are
asked of all rows: both speak of resamples already, and that many components were looked at is paid
for once. Tests on as many rows are resampled alike; one whose rows are not kept stays as it is.

    primary       a head that is missed alone
    secondary     one that is missed only together with its group
    interferer    without it the model does better, by the floor of a loss at least
    correlate     it behaves so, and less than the floor is lost without it
    null          none of these is shown on these rows. Heads without the behaviour have no row

A confirmed role says what a component does on these inputs; elsewhere it may do more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.stats.head_table import adjust
from probes.columns import RoleRow, columns

if TYPE_CHECKING:
    from torch import Tensor

_RESAMPLES, _SPLITS = 200, 100

MEANINGS = {
    "confirmed": "it behaves so; ablating it, alone or together with a named group, hurts exactly "
    "where the role acts; and this repeats on fresh inputs",
    "necessary, not specific": "it is needed, and not for this alone: as much is lost where the "
    "role's event does not happen, or what is lost is not what the role says",
    "candidate": "a test could not be put, or needs more rows; `missing` in roles.csv says which "
    "and why",
    "rejected": "it behaves so, and nothing is lost without it, or not on other rows: the model "
    "does not rely on it",
}
"""Each status of a role → what it says of the component, in the words of all pages and docs."""

STATUSES = tuple(MEANINGS)
"""What a row's ``status`` can be, in the order in which rows are listed."""

_BESIDE = ("tests", "by_position", "revision", "text_attention", "text_loss", "text_first")

ROLE_COLUMNS = tuple(n for n in columns(RoleRow) if n not in _BESIDE)
"""A role table's columns, as :class:`~probes.columns.RoleRow` describes them. What :func:`decide`
returns has one more, ``tests``: JSON text, a list of :class:`~probes.columns.TestRow`."""


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
        rows: The kind of rows on which a cause was measured; empty where there is one kind.
        alone: Whether it says that the component is missed when nothing else is taken away.
        loss: Whether it says that the model's loss rises, or its output changes, without it.
        by_row: What each row showed, whose mean the score is; None where it is not kept.
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
    rows: str = ""
    alone: bool = False
    loss: bool = False
    by_row: Float[np.ndarray, " row"] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def too_few(cls, what: str, needed: int, floor: float, family: str = "") -> Test:
        """The test that could not be made, because it needs more rows."""
        words = f"too few rows for {what}: needs {needed}"
        return cls(words, 0.0, floor, 1.0, family=family, untested=words)

    def is_settled(self, odds: float) -> bool:
        """Whether more rows would hardly change the result: the test fails with its whole interval
        below the floor, or it passes with none of it below and a p-value of at most ``odds``."""
        return self.high < self.floor or (self.low >= self.floor and self.p <= odds)

    @property
    def may_pass(self) -> bool:
        """Whether the interval of a score below the floor reaches up to it."""
        return self.score < self.floor <= self.high

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
        specificity: Tests that ablating it hurts through this role alone.
        transfer: Tests that the cause holds on other rows.
        sufficiency: What is told beside, and decides nothing.
        together: Layer and head of all that the cause took away; empty for the component alone.
        positions: The first and the last position that the behaviour is there over; empty for all.
        keys: Kind of rows → the keys that the role is about, ``[row, query, key]``, where they
            differ from head to head; None where they are one class for all heads.
        tokens: Kind of rows → the tokens that the head raises in place of those at its keys,
            ``[row, key]``, −1 for none; None where it raises those.
        percentile: The share of random sets without which less is lost than without the group; NaN
            for a single component.
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
    specificity: Sequence[Test] = ()
    transfer: Sequence[Test] = ()
    sufficiency: Sequence[Test] = ()
    together: tuple[tuple[int, int], ...] = ()
    positions: tuple[int, ...] = ()
    keys: Callable[[str], Tensor] | None = None
    tokens: Callable[[str], Tensor] | None = None
    percentile: float = float("nan")


@dataclass(frozen=True)
class Lacking:
    """A role that could not be looked for.

    Attributes:
        role: The name of the role.
        reason: Why it could not be looked for, in words.
    """

    role: str
    reason: str


_STABLE = 0.9
"""The least share of resamples on which the scores of a confirmed role reach their floors."""

SAME_ANSWER = "same answer"
"""The family of the test that a head's write serves where another route leads to the answer."""

_BY_INTERVAL = ("specificity", "transfer")
"""The kinds of tests that fail only if their whole interval is below the floor."""

_NO_CAUSE = "cause: no model could be run"


def by_status(statuses: pd.Series) -> pd.Series:
    """The place of each status in :data:`STATUSES`, to sort rows by."""
    return statuses.map(STATUSES.index)


def holds(tests: Sequence[Test]) -> bool:
    """Whether the score of every test is at least its floor; p- and q-values are ignored."""
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
    q = _q_values(found)
    rows = [
        row for one, own in zip(found, q, strict=True) if (row := _row(one, own, level)) is not None
    ]
    return pd.DataFrame(rows, columns=[*ROLE_COLUMNS, "tests"])


def _kinds(one: Found) -> list[tuple[str, Test]]:
    """Every test with the kind that it is of, in the order of the row's sentence."""
    kinds: dict[str, Sequence[Test]] = {
        "behaviour": one.behaviour,
        "cause": one.cause or (),
        "specificity": one.specificity,
        "transfer": one.transfer,
        "sufficiency": one.sufficiency,
    }
    return [(kind, test) for kind, tests in kinds.items() for test in tests]


def _q_values(found: Sequence[Found]) -> list[list[float]]:
    """The q of every test of everything that was tested, adjusted within each family."""
    families: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    tests, asked = [_kinds(one) for one in found], Counter(one.role for one in found)
    for k, one in enumerate(found):
        for i, (kind, test) in enumerate(tests[k]):
            families.setdefault((one.role, kind, test.family or test.name), []).append((k, i))
    q = [[1.0] * len(some) for some in tests]
    for (role, kind, _), members in families.items():
        p = [tests[k][i][1].p for k, i in members]
        untried = 0 if kind == "behaviour" else max(asked[role] - len(members), 0)
        adjusted = adjust(np.array(p + [1.0] * untried))[: len(members)]
        for (k, i), value in zip(members, adjusted.tolist(), strict=True):
            q[k][i] = value
    return q


@dataclass(frozen=True)
class _Judged:
    """The tests of one kind: whether one failed, which could not be put or are undecided, and
    whether what is lost was tested and is enough (None where it was not tested). Where the loss
    itself was measured it says so, and no change of the output."""

    failed: bool
    untested: tuple[str, ...]
    undecided: tuple[str, ...]
    lost: bool | None

    @property
    def open(self) -> bool:
        return bool(self.untested or self.undecided)


def _judge(
    tests: Sequence[tuple[str, Test]], q: Sequence[float], kind: str, level: float
) -> _Judged:
    failed, untested, undecided = False, list[str](), list[str]()
    lost: dict[bool, bool] = {}  # by whether the loss itself was measured, which goes first
    for (of, test), odds in zip(tests, q, strict=True):
        if of != kind:
            continue
        if test.untested:
            untested.append(test.untested)
            continue
        enough = test.score >= test.floor
        passed = enough and odds < level and not test.wide
        open_ = (enough and not passed) or (kind in _BY_INTERVAL and not enough and test.may_pass)
        failed |= not enough and not open_
        if open_:
            undecided.append(f"{kind} undecided, it needs more rows: {_score_in_words(test)}")
        if test.loss and (passed or not enough):
            measured = test.family == "loss"
            lost[measured] = lost.get(measured, False) or passed
    return _Judged(failed, tuple(untested), tuple(undecided), lost.get(True, lost.get(False)))


def _score_in_words(test: Test) -> str:
    """``the loss rises, in nats, by 0.17 (−0.02 to 0.36)``: the score with its interval."""
    told = f"{test.name.rstrip(' ,:')} {test.score:.2f}"
    return told if test.low != test.low else f"{told} ({test.low:.2f} to {test.high:.2f})"


def _row(one: Found, q: Sequence[float], level: float) -> dict[str, Any] | None:
    tests = _kinds(one)
    judged = {
        kind: _judge(tests, q, kind, level)
        for kind in ("behaviour", "cause", "specificity", "transfer")
    }
    behaviour = judged["behaviour"]
    significant = all(value < level for value in q[: len(one.behaviour)])
    if behaviour.failed or behaviour.untested or not significant:
        return None
    deciding = [i for i, (kind, _) in enumerate(tests) if kind != "sufficiency"]
    status, missing = _status(one, judged), _lacking(one, judged.values())
    tried, share = [tests[i][1] for i in deciding], float("nan")
    if one.cause and not any(test.untested for test in tried):
        share = stability(tried)
    if status == "confirmed" and share < _STABLE:
        unstable = (
            f"stability: on {share:.0%} of resamples of the rows the scores reach their floors"
        )
        status, missing = "candidate", "; ".join(filter(None, (missing, unstable)))
    return {
        "component": one.component,
        "layer": one.layer,
        "head": one.head,
        "group": one.group,
        "role": one.role,
        "target": one.target,
        "status": status,
        "outcome": _outcome(one, judged["cause"]),
        "strength": one.strength,
        "p": max(tests[i][1].p for i in deciding),
        "q": max(q[i] for i in deciding),
        "effect": _last_score(one.sufficiency if _member(one) else one.cause, alone=_member(one)),
        "effect_of_group": _last_score(one.cause) if _member(one) else float("nan"),
        "stability": share,
        "halves": halves(tried) if isfinite(share) else share,
        "percentile": one.percentile,
        "same_answer": _last_score([t for t in one.sufficiency if t.family == SAME_ANSWER]),
        "evidence": _sentence(one, tests),
        "missing": missing,
        "tests": json.dumps([_data(kind, t, v) for (kind, t), v in zip(tests, q, strict=True)]),
    }


def _member(one: Found) -> bool:
    """Whether what was found is a head whose cause is that of a group."""
    return one.component == "head" and bool(one.together)


def _last_score(tests: Sequence[Test] | None, *, alone: bool = False) -> float:
    """The score of the last test that was made (``alone``: of those without one head alone); NaN
    for none."""
    some = [test for test in tests or () if test.alone or not alone]
    return some[-1].score if some and not some[-1].untested else float("nan")


def _outcome(one: Found, cause: _Judged) -> str:
    """What a head with the behaviour is to the model, by what is lost without it."""
    if one.component != "head" or not one.cause:
        return ""
    if cause.lost is None or one.together:
        shown = not cause.failed and not cause.open
        least = ("secondary" if one.together else "primary") if shown else "null"
        return "correlate" if cause.failed else least
    if cause.lost:
        return "primary"
    measured = [test for test in one.cause if test.loss and not test.untested][-1]
    if measured.score <= -measured.floor and measured.high <= -measured.floor / 2:
        return "interferer"
    return "correlate" if measured.score < measured.floor else "null"


def _status(one: Found, judged: Mapping[str, _Judged]) -> str:
    """The row's status; what comes first in the module's list of tests decides first."""
    cause = judged["cause"]
    if not one.cause or (cause.untested and cause.lost is not False):
        return "candidate"
    if cause.failed:
        return "necessary, not specific" if cause.lost else "rejected"
    if judged["behaviour"].open or judged["cause"].open:
        return "candidate"
    if judged["specificity"].failed:
        return "necessary, not specific"
    if judged["specificity"].open:
        return "candidate"
    if judged["transfer"].failed:
        return "rejected"
    return "candidate" if judged["transfer"].open else "confirmed"


def _lacking(one: Found, judged: Iterable[_Judged]) -> str:
    """What could not be tested or is undecided, and why."""
    if one.cause is None:
        return _NO_CAUSE
    reasons = [reason for some in judged for reason in (*some.untested, *some.undecided)]
    return "; ".join(filter(None, (one.missing, *dict.fromkeys(reasons))))


def _data(kind: str, test: Test, q: float) -> dict[str, Any]:
    """A test as JSON data, with null for numbers that were not computed."""
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


def _sentence(one: Found, tests: Sequence[tuple[str, Test]]) -> str:
    told = "; ".join(_words(test) for _, test in tests)
    return f"{told}; no model could be run, so no cause was sought" if one.cause is None else told


def _words(test: Test) -> str:
    if test.untested:
        return test.untested
    wide = f", an interval too wide (from {test.low:.2f}) to count" if test.wide else ""
    if not test.score < test.floor:
        return f"{test.name} {test.score:.2f}{wide}"
    near = f"{test.score:.2f}" == f"{test.floor:.2f}"
    score = f"{test.score:.{3 if near else 2}f}"
    return f"{test.name} {score}, below the floor of {test.floor:.2g}"


def stability(tests: Sequence[Test]) -> float:
    """The share of resamples on which all scores are at least their floors."""
    every = np.full(_RESAMPLES, all(one.score >= one.floor for one in tests if one.by_row is None))
    for test in tests:
        if test.by_row is not None:
            count = len(test.by_row)
            drawn = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
            every &= test.by_row[drawn].mean(1) >= test.floor
    return float(every.mean())


def halves(tests: Sequence[Test]) -> float:
    """The share of splits on whose halves the scores say the same; NaN where no test has rows."""
    kept = [(t.by_row, t.floor) for t in tests if t.by_row is not None and len(t.by_row) > 1]
    passed = np.full((2, _SPLITS), True)
    for rows, floor in kept:
        order = np.random.default_rng(0).random((_SPLITS, len(rows))).argsort(1)
        for side, some in enumerate(np.split(order, [len(rows) // 2], axis=1)):
            passed[side] &= rows[some].mean(1) >= floor
    return float((passed[0] == passed[1]).mean()) if kept else float("nan")
