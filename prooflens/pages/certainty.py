"""How sure is a role? What its tests say, in a few words and test by test.

A role table's ``tests`` hold every score with its floor, q and interval
(:mod:`probes.roles.decision`). Here they are turned into what a reader asks first: whether to
believe the role, which test speaks against it, and which came nearest to failing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pandas as pd

from prooflens.pages.findings import in_words, part_names, without_groups

Fitting = dict[str, Any]
TOLD = ("what it does, and what is lost", "is it sure")
"""Names of the two columns that :func:`with_certainty` adds."""
_NATS = re.compile(r", in nats,( by)?\s*$")


def tests_of(row: Any) -> list[Fitting]:
    """Return the tests that decide a role, without those of sufficiency."""
    told = json.loads(row.tests) if isinstance(row.tests, str) else []
    return [test for test in told if _decides(test)]


def passes(test: Fitting, level: float) -> bool:
    """Return whether a test passes: its score reaches the floor, its q is below the level, and its
    interval does not reach below half the floor; none of the first three is unknown."""
    score, low, floor, q = test["score"], test["low"], test["floor"], test["q"]
    if score is None or floor is None or q is None:  # what is unknown does not pass
        return False
    return bool(score >= floor and q < level and (low is None or low >= floor / 2))


def in_short(row: Any) -> str:
    """Describe a role's evidence in short: one test of the behaviour and one of the cause."""
    behaviour = [test for test in tests_of(row) if test["kind"] == "behaviour"][:1]
    told = [_score_in_words(test) for test in behaviour]
    return "; ".join(filter(None, [*told, last_cause(row)])) or str(row.evidence)


def last_cause(row: Any) -> str:
    """Describe the result of the last causal test of a role, such as "the loss rises by 8.92 nats".

    Args:
        row: A row of a role table, with a ``tests`` column in JSON.

    Returns:
        The test's name with its score and unit, or its name alone if the test could not be made;
        an empty string if the role has no causal test. Its score is the row's ``effect``, or
        ``effect_of_group`` for a head that was ablated together with others.
    """
    cause = [test for test in tests_of(row) if test["kind"] == "cause"]
    return _score_in_words(cause[-1]) if cause else ""


def how_sure(row: Any, level: float) -> str:
    """Say in one or two sentences whether to believe a role.

    Args:
        row: A row of a role table.
        level: The false-discovery rate by which it was decided.
    """
    tests = tests_of(row)
    if not tests:
        return f"It was {row.status}; on which tests was not kept."
    failed = [test for test in tests if not passes(test, level)]
    count = f"{len(tests) - len(failed)} of {len(tests)} tests pass"
    if row.status == "confirmed":
        return f"Yes: {_all_pass(tests)}{_nearest(tests)}."
    if row.status == "candidate":
        return f"Not yet: {count}; {row.missing}."
    failing = in_words([_unsure(test) for test in failed if _could_be_made(test)], most=2)
    if row.status == "rejected":
        return f"No, the model does not rely on it: {count}; {failing}."
    return f"It is needed, and not for this alone: {count}; {failing}."


def with_certainty(roles: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return a role table with the columns :data:`TOLD`, for a page; the CSV file has all tests.

    Args:
        roles: The table.
        level: The false-discovery rate by which it was decided.
    """
    rows = list(roles.itertuples())
    short, sure = TOLD
    told = {
        short: pd.Series([in_short(row) for row in rows], index=roles.index, dtype=object),
        sure: pd.Series([how_sure(row, level) for row in rows], index=roles.index, dtype=object),
    }
    return roles.assign(**told)


def certainty(roles: pd.DataFrame, level: float) -> str:
    """Say in one or two sentences how sure all roles of a table are."""
    some = without_groups(roles)
    counts = some["status"].value_counts()
    sure = int(counts.get("confirmed", 0))
    if some.empty:
        return "Is it sure? Nothing's behaviour comes near a role: there was no cause to test."
    others = [f"{n} {status}" for status, n in counts.items() if status != "confirmed"]
    left = f" Not confirmed: {'; '.join(others)}." if others else ""
    if not sure:
        return f"Is it sure? No role passes all of its tests.{left}"
    nearest, told = nearest_to_failing(some[some["status"] == "confirmed"]), ""
    if nearest is not None:
        ratio, name, test = nearest
        told = f"; nearest to failing is {name}: {against(test)} ({ratio:.2f} times what is asked)"
    each = f"{sure} confirmed roles pass" if sure > 1 else "One confirmed role passes"
    return (
        f"Is it sure? {each} all of {'their' if sure > 1 else 'its'} tests, at a "
        f"false-discovery rate of {level:g}{told}.{left}"
    )


def nearest_to_failing(sure: pd.DataFrame) -> tuple[float, str, Fitting] | None:
    """Return the test of confirmed roles whose score is the smallest multiple of its floor.

    Returns:
        That multiple, role and component in words, and the test; None if no test has a floor.
    """
    found = [
        (test["score"] / test["floor"], f"{role} {name}", test)
        for name, role, tests in zip(part_names(sure), sure["role"], sure["tests"], strict=True)
        for test in json.loads(tests)
        if _decides(test) and test["floor"] and test["score"] is not None
    ]
    return min(found, default=None, key=itemgetter(0, 1))


def _decides(test: Fitting) -> bool:
    """Return whether a test decides; tests of sufficiency do not."""
    return test.get("kind") != "sufficiency"


def _could_be_made(test: Fitting) -> bool:
    """Return whether a test could be made: one that could not has a score of 0 and p = 1."""
    return bool(test["score"] or (test["p"] is not None and test["p"] < 1))


def _all_pass(tests: Sequence[Fitting]) -> str:
    return f"all {len(tests)} tests pass" if len(tests) > 1 else "its test passes"


def _nearest(tests: Sequence[Fitting]) -> str:
    floored = [test for test in tests if test["floor"] and test["score"] is not None]
    if not floored:
        return ""
    least = min(floored, key=lambda test: test["score"] / test["floor"])
    return f"; nearest to failing: {against(least)}"


def against(test: Fitting) -> str:
    """Return a test in words: what it measures, its score, and the floor that the score must
    reach."""
    asked = "an unknown floor" if test["floor"] is None else f"{test['floor']:.3g}"
    return f"{_score_in_words(test)}, where {asked} is asked"


def _unsure(test: Fitting) -> str:
    """Return why a test does not pass: its score, or what makes a score above the floor unsure."""
    told = against(test)
    if None in (test["score"], test["floor"]) or test["score"] < test["floor"]:
        return told
    q = "unknown" if test["q"] is None else f"{test['q']:.2g}"
    return f"{told}, not surely (q {q}" + (
        ")" if test["low"] is None else f", 95 % from {test['low']:.2g})"
    )


def _number(score: float) -> str:
    """Return a number with two decimals, so that it does not look like a count; with three digits
    if two decimals would hide it."""
    return f"{score:.2f}" if 0.1 <= abs(score) < 100 else f"{score:.3g}"


def _score_in_words(test: Fitting) -> str:
    """Return what was measured and how much: ``the loss rises by 8.92 nats``."""
    name, score = str(test["name"]), test["score"]
    if not _could_be_made(test):
        return name
    number = "not measured" if score is None else _number(score)
    if name.startswith("heads that do this"):
        number = f"{score:.0f}"
    if score is not None and score < 0 and " rises" in name:
        name, number = name.replace(" rises", " falls"), _number(-score)
    nats = _NATS.search(name)
    if nats is None:
        return f"{name} {number}"
    return f"{name[: nats.start()]}{nats[1] or ''} {number} nats"
