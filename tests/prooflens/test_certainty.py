"""Whether a role is sure, in words, held against rows that are written by hand."""

import json
from typing import Any

import pandas as pd

from prooflens.pages.certainty import certainty, how_sure, in_short, passes

LEVEL = 0.01


def scored_test(kind: str, name: str, score: float, floor: float, **more: Any) -> dict[str, Any]:
    numbers = {"p": 0.0, "q": 0.0, "low": None, "high": None}
    return {"name": name, "kind": kind, "score": score, "floor": floor} | numbers | more


SHARE = scored_test("behaviour", "share of attention", 0.9, 0.3)
LOSS = scored_test("cause", "without the head the loss rises, in nats, by", 0.0496, 0.05)


def role(status: str, *tests: dict[str, Any], missing: str = "") -> Any:
    row = {"head": 1, "layer": 0, "role": "induction", "status": status, "missing": missing}
    return pd.Series(row | {"component": "head", "evidence": "told", "tests": json.dumps(tests)})


def test_a_test_passes_by_its_score_its_q_and_its_interval() -> None:
    assert passes(SHARE, LEVEL)
    assert not passes(LOSS, LEVEL)
    assert not passes(SHARE | {"q": 0.01}, LEVEL)
    assert not passes(SHARE | {"low": 0.14}, LEVEL)
    assert passes(SHARE | {"low": 0.15}, LEVEL)


def test_what_is_unknown_does_not_pass_and_is_told() -> None:
    """The schema allows null for the numbers of a test."""
    for name in ("score", "floor", "q"):
        assert not passes(SHARE | {name: None}, LEVEL)
    unknown = SHARE | {"p": None, "q": None}
    assert how_sure(role("rejected", unknown), LEVEL).endswith(
        "0 of 1 tests pass; share of attention 0.90, where 0.3 is asked, not surely (q unknown)."
    )
    assert in_short(role("candidate", unknown | {"score": 0.0})) == "share of attention"
    no_floor = how_sure(role("rejected", SHARE | {"floor": None}), LEVEL)
    assert no_floor.endswith("share of attention 0.90, where an unknown floor is asked.")


def test_in_short_a_role_is_its_behaviour_and_what_is_lost() -> None:
    told = in_short(role("rejected", SHARE, scored_test("behaviour", "more", 1.0, 0.1), LOSS))
    assert told == "share of attention 0.90; without the head the loss rises by 0.0496 nats"
    assert in_short(role("candidate")) == "told"


def test_each_status_says_whether_to_believe_it_and_why() -> None:
    enough = LOSS | {"score": 0.2}
    beside = scored_test("sufficiency", "beside", 0.0, 0.5)
    assert how_sure(role("confirmed", SHARE, enough, beside), LEVEL) == (
        "Yes: all 2 tests pass; nearest to failing: share of attention 0.90, where 0.3 is asked."
    )
    assert how_sure(role("rejected", SHARE, LOSS), LEVEL) == (
        "No, the model does not rely on it: 1 of 2 tests pass; without the head the loss rises by "
        "0.0496 nats, where 0.05 is asked."
    )
    elsewhere = scored_test("specificity", "lost here alone", -0.1, 0.5)
    assert how_sure(role("necessary, not specific", SHARE, enough, elsewhere), LEVEL) == (
        "It is needed, and not for this alone: 2 of 3 tests pass; lost here alone -0.10, where 0.5 "
        "is asked."
    )
    unput = scored_test("transfer", "too few rows", 0.0, 0.5, p=1.0, q=1.0)
    assert how_sure(role("candidate", SHARE, unput, missing="too few rows"), LEVEL) == (
        "Not yet: 1 of 2 tests pass; too few rows."
    )
    assert how_sure(role("confirmed"), LEVEL).startswith("It was confirmed; on which tests")


def test_a_table_says_how_sure_it_is_in_a_sentence() -> None:
    sure, not_sure = role("confirmed", SHARE), role("rejected", SHARE, LOSS)
    assert certainty(pd.DataFrame([sure, not_sure]), LEVEL) == (
        "Is it sure? One confirmed role passes all of its tests, at a false-discovery rate of "
        "0.01; nearest to failing is induction L0H1: share of attention 0.90, where 0.3 is asked "
        "(3.00 times what is asked). Not confirmed: 1 rejected."
    )
    assert certainty(pd.DataFrame([not_sure]), LEVEL) == (
        "Is it sure? No role passes all of its tests. Not confirmed: 1 rejected."
    )
    assert "there was no cause to test" in certainty(pd.DataFrame([sure])[:0], LEVEL)
