"""Sentences about a circuit, held against role tables that are written by hand."""

import json
from typing import Any

import pandas as pd

from prooflens.pages.circuit import circuit_doubts, circuit_sentences

READS = "without what earlier heads (L0H3, L0H10 …) see of the token before that share falls by"


def row(layer: int, head: int, role: str, strength: float, effect: float, **more: Any) -> Any:
    tests = [{"name": "share", "score": abs(strength), "floor": 0.3},
             {"name": "loss rises by", "score": effect, "floor": 0.05}]  # fmt: skip
    if "falls" in more:
        tests.append({"name": READS, "score": more["falls"], "floor": 0.15})
    status = more.get("status", "confirmed")
    return {"layer": layer, "head": head, "role": role, "status": status, "strength": strength,
            "effect": effect, "tests": json.dumps(tests)}  # fmt: skip


def table(*rows: Any) -> pd.DataFrame:
    columns = ["layer", "head", "role", "status", "strength", "effect", "tests"]
    return pd.DataFrame(list(rows), columns=columns)


CIRCUIT = table(
    row(0, 3, "previous-token", 0.9, 10.0),
    row(2, 10, "induction", 0.8, 1.0, falls=0.7),
    row(2, 2, "induction", 0.6, 0.2, falls=0.5),
    row(2, 10, "copying", 2.0, 1.0),
    row(0, 1, "copying", -0.5, 0.3),
    row(1, 1, "positional", 0.9, 0.01, status="candidate"),
)


def test_the_circuit_is_told_from_reader_to_writer_and_to_the_logits() -> None:
    who, reads, writes, others = circuit_sentences(CIRCUIT)
    assert who.startswith("L2H10 and L2H2 do induction: 60 to 80% of their attention")
    assert "When one of them loses that attention, the loss on random tokens that repeat" in who
    assert "rises by 0.20 to 1.00 nats a token" in who
    assert reads.startswith(
        "They find it by reading L0H3, L0H10 and others, which look at the token before"
    )
    assert reads.endswith(
        "falls by 0.50 to 0.70; when L0H3 loses that attention, the loss rises by 10.00 nats."
    )
    assert writes == "L2H10 then raises the logit of the token found, by 2.00."
    assert others == "Also confirmed: copying L0H1 (suppresses) (loss +0.30)."


def test_a_loss_is_told_of_the_writers_that_it_was_measured_for() -> None:
    both = {"group": "L0H3+L0H10", "effect_of_group": 7.0}
    writers = [
        row(0, head, "previous-token", 0.9, alone) | both for head, alone in ((3, 5), (10, 1))
    ]
    reader = row(2, 2, "induction", 0.6, 0.2, falls=0.5) | {"group": "", "effect_of_group": None}
    _, reads, *_ = circuit_sentences(pd.DataFrame([*writers, reader]))
    assert reads.endswith(
        ". Of these L0H3 and L0H10 are confirmed: when all of them lose that attention at once, "
        "the loss rises by 7.00 nats."
    )


def test_where_no_head_does_induction_it_is_said_with_the_nearest_number() -> None:
    attention = pd.Series({"L0H1": 0.03, "L1H0": 0.11})
    who, rest = circuit_sentences(table(), attention)
    assert who.endswith("equal tokens is 0.11 (L1H0), and 0.3 is asked.")
    assert rest == "No other role is confirmed of any head."
    maybe = table(row(1, 0, "induction", 0.5, 0.01, status="candidate"))
    assert circuit_sentences(maybe)[0].startswith("No head is shown to do induction: L1H0 attends")


def test_doubts_name_what_is_left_out_and_what_is_cut_one_at_a_time() -> None:
    left, together = circuit_doubts(CIRCUIT)
    assert left.startswith("1 of 6 roles are candidates")
    assert together.startswith("Heads are cut one at a time")
    assert circuit_doubts(table()) == []


def test_heads_that_share_a_job_are_told_as_one_group_with_their_shares() -> None:
    tests = [{"name": "share of L1H2", "score": 0.5}, {"name": "share of L1H3", "score": 0.5}]
    heads = [
        row(1, head, "induction", 0.9, alone) | {"component": "head", "effect_of_group": 3.4}
        for head, alone in ((2, 0.3), (3, 1.9))
    ]
    group = row(1, -1, "induction", 0.9, 3.4) | {"component": "group", "tests": json.dumps(tests)}
    members = [one | {"group": "L1H2+L1H3"} for one in heads]
    group["group"] = "L1H2+L1H3"
    first, *_, last = circuit_sentences(pd.DataFrame([*members, group]))
    assert first.startswith("L1H2 and L1H3 do induction")
    assert "When all of them lose that attention at once, the loss" in first
    assert last == (
        "L1H2 and L1H3 share one job, induction: without them together the loss rises by 3.40 "
        "nats, by 0.30 to 1.90 without one of them. Their shares: L1H2 50% and L1H3 50%."
    )
    assert not any("L1H-1" in said for said in circuit_doubts(pd.DataFrame([*members, group])))


def test_a_share_that_is_large_enough_is_not_said_to_be_too_small() -> None:
    """A head may attend there as much as is asked, and no more than tokens of other rows give."""
    for share, why in ((0.1, "and 0.3 is asked."), (0.31, "not clearly more than it would be by")):
        attention = pd.Series({"L0H0": share, "L0H1": 0.02})
        said = circuit_sentences(table(), attention)[0]
        assert f"{share:.2f} (L0H0), {why}" in said
