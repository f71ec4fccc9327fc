"""When is a role confirmed? The rule that all roles share, and the row of the role table it gives.

    behaviour     what the component is observed to do; a component that fails these tests gets
                  no row
    cause         what is lost when the component is ablated, alone or together with its group
    specificity   the loss is due to the role: little is lost where the role's event does not happen
    transfer      the cause repeats on rows other than those that the role was found on

A test passes if its score is at least its floor, its q is below the level, and its 95 % interval
does not reach below half of the floor. A test whose score is below its floor has failed; a test
with a good score that only needs more rows (because of q or the interval) is undecided. Tests of
specificity and transfer fail only if their whole interval is below the floor: that a loss is not
due to the role is a claim too, and must be shown.

    confirmed                 all tests that were made pass
    necessary, not specific   the component is needed, but not (or not only) through this role:
                              another test of the cause fails, or specificity does
    rejected                  nothing is lost without the component, or the loss does not repeat
                              on other rows: the behaviour is there, and the model does not rely
                              on it
    candidate                 a test could not be made, or is undecided: ``missing`` says which

q is Benjamini–Hochberg's, over all components that were tested for the role. Components without its
behaviour get no further tests and count in those families with p = 1; correcting for the chosen
components alone would ignore that they were chosen by looking. Without a model that can be run (a
store alone) no cause can be tested, and no role is more than a candidate. A role whose event
happens at every position has no controls: ``missing`` says so, and its other tests decide.

A confirmed role must be stable: if its scores reach their floors on fewer than nine in ten
resamples of the rows, it becomes a candidate, and ``missing`` says so.

    stability   the share of 200 resamples of the rows on which every score is at least its floor
    halves      the share of 100 random splits of the rows into halves on which both halves agree:
                in both all scores reach their floors, or in neither

In both, a score is the mean of its values by row. Significance and intervals are tested on all rows
alone, because they account for resampling already. Tests with the same number of rows are resampled
alike; a test whose values by row are not kept counts with its score on all rows.

    primary       the model does worse when the head alone is ablated
    secondary     the model does worse only when the head is ablated together with its group
    interferer    without the head the model does better, by at least the floor of a loss
    correlate     the head has the behaviour, and less than the floor is lost without it
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
"""Each status of a role → what it says about the component. All pages and documents use these
words."""

STATUSES = tuple(MEANINGS)
"""All values of the column ``status``, in the order in which rows are listed."""

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
        p: The p-value against the test's null; 0 for a test that only compares the score with the
            floor.
        low, high: The 95 % interval of the score. NaN where none was computed: for scores read off
            weights, for the p-value of a null, and for differences of two scores that have their
            own intervals.
        family: The family of tests in which p is adjusted for false discovery.
        untested: Why the test could not be made, in which case it does not pass. Empty where it was
            made.
        rows: The kind of rows on which a cause was measured; empty where there is one kind.
        alone: Whether the test ablates this component alone.
        loss: Whether the score measures a rise of the loss, or a change of the output, under
            ablation.
        by_row: The value of each row, whose mean is the score; None where the values are not kept.
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
        """Return a test marked as not made, because it needs more rows.

        Args:
            what: What would have been measured, in words.
            needed: The least number of rows.
            floor: The floor of the test.
            family: The family of tests in which p is adjusted for false discovery.
        """
        words = f"too few rows for {what}: needs {needed}"
        return cls(words, 0.0, floor, 1.0, family=family, untested=words)

    def is_settled(self, odds: float) -> bool:
        """Return whether more rows would hardly change the result.

        That is so if the whole interval is below the floor, or none of it is and p is at most
        ``odds``.
        """
        return self.high < self.floor or (self.low >= self.floor and self.p <= odds)

    @property
    def may_pass(self) -> bool:
        """Whether the score is below the floor but its interval includes the floor."""
        return self.score < self.floor <= self.high

    @property
    def wide(self) -> bool:
        """Whether the score reaches the floor but its interval reaches below half of the floor."""
        return self.score >= self.floor and self.low < self.floor / 2


@dataclass(frozen=True)
class Found:
    """A role that a component may have, with the tests of its behaviour and of its cause.

    Attributes:
        component, layer, head, group: The component that was tested; head −1 for a component that
            is no head.
        role, target: The role, and what it is for, such as the name of a memory or latent.
        strength: The number by which the role is measured.
        behaviour: The tests that must pass for a row in the role table.
        cause: The tests that must pass as well to confirm the role; None where no model could be
            run.
        missing: What could not be tested, and why; empty where everything was.
        specificity: Tests that ablating the component hurts through this role alone.
        transfer: Tests that the cause repeats on other rows.
        sufficiency: Tests that are reported beside the others and decide nothing.
        together: The heads (layer, head) that the test of the cause ablates together; empty if it
            ablates the component alone.
        positions: The first and the last position over which the behaviour is shown; empty for all.
        keys: Kind of rows → the keys that the role is about, ``[row, query, key]``, if each head
            has its own; None if they are one key set for all heads.
        tokens: Kind of rows → the tokens whose logits the head raises, ``[row, key]``, −1 for none,
            if they are not the tokens at its keys; None if they are.
        percentile: The share of random sets of heads whose ablation costs less than that of the
            group; NaN for a single component.
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
    """A role that could not be tested for.

    Attributes:
        role: The name of the role.
        reason: Why it could not be tested for, in words.
    """

    role: str
    reason: str


_STABLE = 0.9
"""Least share of resamples of the rows on which all scores of a confirmed role must reach their
floors. With less, the role is a candidate."""

SAME_ANSWER = "same answer"
"""Family of the tests whether a head's write still serves on rows where another route leads to the
same answer."""

_BY_INTERVAL = ("specificity", "transfer")
"""Kinds of tests that fail only if the whole interval lies below the floor. A score below the floor
alone leaves them undecided."""

_NO_CAUSE = "cause: no model could be run"


def by_status(statuses: pd.Series) -> pd.Series:
    """Return the position of each status in :data:`STATUSES`, to sort rows of a role table by."""
    return statuses.map(STATUSES.index)


def holds(tests: Sequence[Test]) -> bool:
    """Return whether the score of every test is at least its floor; p- and q-values are ignored."""
    return all(test.score >= test.floor for test in tests)


def no_roles() -> pd.DataFrame:
    """Return a role table without rows."""
    return pd.DataFrame(columns=[*ROLE_COLUMNS, "tests"])


def decide(found: Sequence[Found], *, level: float = 0.01) -> pd.DataFrame:
    """Decide the status of every role that was tested, and make the role table.

    Args:
        found: Everything that was tested, including components that fail the behaviour: they count
            in the families over which q is adjusted.
        level: The false-discovery rate that every q must stay below.

    Returns:
        The columns :data:`ROLE_COLUMNS` and ``tests``; one row for each finding whose tests of
        behaviour all reach their floors with q below the level.
    """
    q = _q_values(found)
    rows = [
        row for one, own in zip(found, q, strict=True) if (row := _row(one, own, level)) is not None
    ]
    return pd.DataFrame(rows, columns=[*ROLE_COLUMNS, "tests"])


def _kinds(one: Found) -> list[tuple[str, Test]]:
    """Return every test of a finding with its kind, in the order of the row's sentence."""
    kinds: dict[str, Sequence[Test]] = {
        "behaviour": one.behaviour,
        "cause": one.cause or (),
        "specificity": one.specificity,
        "transfer": one.transfer,
        "sufficiency": one.sufficiency,
    }
    return [(kind, test) for kind, tests in kinds.items() for test in tests]


def _q_values(found: Sequence[Found]) -> list[list[float]]:
    """Return the q of every test of every finding, adjusted within each family.

    A family is the tests of one role and kind with one family name. In all kinds but ``behaviour``,
    the findings of the role that were not tested count with p = 1.
    """
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
    """The result of the tests of one kind.

    Attributes:
        failed: Whether a test failed.
        untested: Why tests could not be made, one sentence each.
        undecided: Which tests need more rows, one sentence each.
        lost: Whether ablation costs enough; None where that was not tested. A test of the loss
            itself goes before a test of a change of the output.
    """

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
    """Return a score with its interval in words: ``the loss rises, in nats, by 0.17 (−0.02 to
    0.36)``."""
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
    """Return whether a finding is a head whose cause is that of a group."""
    return one.component == "head" and bool(one.together)


def _last_score(tests: Sequence[Test] | None, *, alone: bool = False) -> float:
    """Return the score of the last test; NaN if there is none or it could not be made.

    Args:
        tests: The tests.
        alone: Whether to count only the tests that ablate the component alone.
    """
    some = [test for test in tests or () if test.alone or not alone]
    return some[-1].score if some and not some[-1].untested else float("nan")


def _outcome(one: Found, cause: _Judged) -> str:
    """Return the outcome of a head: ``primary``, ``secondary``, ``interferer``, ``correlate`` or
    ``null`` (see the module); empty for other components and for heads without a test of the
    cause."""
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
    """Return the row's status. The kinds of tests decide in the order cause, behaviour,
    specificity, transfer: the first one that fails or is open."""
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
    """Return which tests could not be made or are undecided, and why, separated by semicolons."""
    if one.cause is None:
        return _NO_CAUSE
    reasons = [reason for some in judged for reason in (*some.untested, *some.undecided)]
    return "; ".join(filter(None, (one.missing, *dict.fromkeys(reasons))))


def _data(kind: str, test: Test, q: float) -> dict[str, Any]:
    """Return a test as JSON data, with None for numbers that were not computed."""
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
    """Return the share of 200 resamples of the rows on which every score is at least its floor.

    Tests without values by row count with their score on all rows.
    """
    every = np.full(_RESAMPLES, all(one.score >= one.floor for one in tests if one.by_row is None))
    for test in tests:
        if test.by_row is not None:
            count = len(test.by_row)
            drawn = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
            every &= test.by_row[drawn].mean(1) >= test.floor
    return float(every.mean())


def halves(tests: Sequence[Test]) -> float:
    """Return the share of 100 random splits of the rows into halves on which both halves agree.

    They agree if in both all scores reach their floors, or in neither. NaN where no test has values
    by row.
    """
    kept = [(t.by_row, t.floor) for t in tests if t.by_row is not None and len(t.by_row) > 1]
    passed = np.full((2, _SPLITS), True)
    for rows, floor in kept:
        order = np.random.default_rng(0).random((_SPLITS, len(rows))).argsort(1)
        for side, some in enumerate(np.split(order, [len(rows) // 2], axis=1)):
            passed[side] &= rows[some].mean(1) >= floor
    return float((passed[0] == passed[1]).mean()) if kept else float("nan")
