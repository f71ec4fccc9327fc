"""Statements of mechanisms against role tables, and the number that sums them up."""

import numpy as np
import pandas as pd
import pytest

from interp.errors import ArgumentError
from interp.proofs.mechanism import Mechanism, Part
from probes.agreement import Readable, agreement, overall
from probes.roles import ROLE_COLUMNS

INDUCTION = Mechanism(
    (
        Part("head", 0, 1, "previous-token", "x[t-1]"),
        Part("head", 1, 0, "induction", "y"),
        Part("head", 1, 0, "copying", "y"),
    )
)
NESTED = Mechanism(
    (
        Part("ffn", 0, None, "readout", "t_1", round=1),
        Part("head", 1, 0, "memory-location", "x[t-t_1]", round=1),
        Part("ffn", 1, None, "readout", "t_2", round=2),
        Part("head", 2, 0, "memory-location", "x[t-t_2]", round=2),
        Part("ffn", 2, None, "readout", "f"),
    )
)


def table(*rows: tuple[str, int, int, str, str], status: str = "confirmed") -> pd.DataFrame:
    """A role table with strength 0.9 and q 0.001."""
    found = pd.DataFrame(rows, columns=["component", "layer", "head", "role", "target"])
    found = found.assign(status=status, strength=0.9, p=1e-4, q=1e-3, effect=0.5)
    return found.reindex(columns=list(ROLE_COLUMNS), fill_value="")


HEADS = [
    ("head", 0, 1, "previous-token", ""),
    ("head", 1, 0, "induction", ""),
    ("head", 1, 0, "copying", ""),
]
ROUNDS = [
    ("ffn", 0, -1, "readout", "t_1"),
    ("head", 1, 0, "memory-location", "x[t-t_1]"),
    ("layer", 1, -1, "nested-round", "x[t-t_1]"),
    ("ffn", 1, -1, "readout", "t_2"),
    ("head", 2, 0, "memory-location", "x[t-t_2]"),
    ("layer", 2, -1, "nested-round", "x[t-t_2]"),
    ("ffn", 2, -1, "readout", "f"),
]


def test_everything_holds_for_the_mechanisms_own_roles() -> None:
    for mechanism, rows, count in ((INDUCTION, HEADS, 4), (NESTED, ROUNDS, 7)):
        found = agreement(mechanism, table(*rows))
        assert len(found) == count
        assert found["holds"].all()
        assert found["score"].between(0.9, 1).all()


def test_candidates_and_nothing_hold_nothing() -> None:
    for rows in (table(*HEADS, status="candidate"), table()):
        found = agreement(INDUCTION, rows)
        assert not found["holds"].any()
        assert found["score"].sum() == 0


def test_order_is_judged_and_not_the_layer() -> None:
    def move_layer(row: tuple[str, int, int, str, str]) -> tuple[str, int, int, str, str]:
        return (row[0], 2 * row[1] + 1, *row[2:])

    assert agreement(NESTED, table(*map(move_layer, ROUNDS)))["holds"].all()
    same = [(c, 1 if r == "nested-round" else la, h, r, t) for c, la, h, r, t in ROUNDS]
    found = agreement(NESTED, table(*same)).set_index("statement")["holds"]
    assert not found["round 2 comes after round 1"]
    assert found.sum() == len(found) - 1
    turned = [("head", 1, 1, "previous-token", ""), ("head", 0, 0, "induction", ""), HEADS[2]]
    found = agreement(INDUCTION, table(*turned)).set_index("statement")["holds"]
    assert not found["the induction head comes after a previous-token head"]


def test_a_readout_before_its_memories_does_not_count() -> None:
    early = [("ffn", 0, -1, "readout", "f") if row[4] == "f" else row for row in ROUNDS]
    found = agreement(NESTED, table(*early)).set_index("statement")["holds"]
    assert not found["f is computed by an FFN after the memories are there"]


def test_formulas_are_read_in_the_order_of_their_depth() -> None:
    parts = tuple(Part("ffn", layer, None, "formula", f"E{layer + 2}") for layer in range(3))
    mechanism = Mechanism(parts)

    def read(second: int, p: float = 1e-5) -> dict[str, Readable]:
        layers = {"E2": 0, "E3": second, "E4": 3}
        return {name: Readable(at, p if name == "E3" else 1e-4) for name, at in layers.items()}

    right = agreement(mechanism, table(), layers=read(1))
    assert right["holds"].tolist() == [True, True]
    assert right["q"].tolist() == pytest.approx([2e-5, 1e-4])
    wrong = agreement(mechanism, table(), layers=read(0))
    assert wrong["holds"].tolist() == [False, True]
    assert wrong["q"].tolist() == [1, pytest.approx(1e-4)]
    fresh = agreement(mechanism, table(), layers=read(1, p=0.2))
    assert fresh["holds"].tolist() == [False, True], "fresh models tell as much"
    assert agreement(mechanism, table()).empty


def test_the_number_is_0_at_random_and_1_at_the_construction() -> None:
    whole, none = agreement(INDUCTION, table(*HEADS)), agreement(INDUCTION, table())
    half = agreement(INDUCTION, table(*HEADS[:1]))
    assert overall([whole, whole], [none, none], whole).score == pytest.approx(1)
    random = overall([none, none], [none, half, none, none], whole)
    assert random.low < 0 < random.high
    between = overall([half, half, whole], [none, none, none], whole)
    scores = np.array([half["score"].mean(), half["score"].mean(), whole["score"].mean()])
    assert between.score == pytest.approx(scores.mean() / whole["score"].mean())
    assert between.low < between.score < between.high
    exact = overall([none, none], [none, none], whole)
    assert exact.low <= 0 <= exact.high


def test_nothing_works_more_as_the_proof_says_than_the_proof() -> None:
    whole, none = agreement(INDUCTION, table(*HEADS)), agreement(INDUCTION, table())
    stronger = whole.assign(score=1.0)
    found = overall([stronger, stronger], [none, none], whole)
    assert (found.score, found.high) == (1.0, 1.0)
    assert found.low <= 1


def test_too_little_is_refused() -> None:
    none = agreement(INDUCTION, table())
    with pytest.raises(ArgumentError, match=r"draws must be two or more.*random must be two"):
        overall([none], [none], none)
    with pytest.raises(ArgumentError, match="construction must score above random models"):
        overall([none, none], [none, none], none)
