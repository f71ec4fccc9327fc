"""Roles of an inspection from made-up tables: behaviour, cause and composition each can fail."""

import pandas as pd

from analyses.inspection.roles import role_table
from interp.heads.nulls import Null
from interp.heads.table import head_table, score_row

PLACES = [(layer, head) for layer in range(2) for head in range(3)]
STRONG = {
    ((0, 0), "previous@repeated"): 0.95,
    ((0, 1), "previous@repeated"): 0.9,
    ((1, 0), "after_same@repeated"): 0.8,
    ((1, 1), "after_same@repeated"): 0.8,
    ((1, 2), "same@shuffled"): 0.7,
}
TARGETS = ("previous@repeated", "same@shuffled", "after_same@repeated", "first@repeated")


def null(p: float) -> Null:
    return Null(0.0, 0.05, p)


def behaviour() -> pd.DataFrame:
    rows = []
    for place in PLACES:
        where = {"component": "head", "layer": place[0], "head": place[1]}
        for target in TARGETS:
            score = STRONG.get((place, target), 0.05)
            for circuit in ("positions", "tokens"):
                p = 1e-9 if score > 0.5 else 0.4
                rows.append(score_row("attention_mass", score, null(p), circuit=circuit,
                                      target=target, **where))  # fmt: skip
        copied = {(1, 0): 2.0, (1, 1): -1.5}.get(place, 0.01)
        p = 1e-9 if abs(copied) > 1 else 0.5
        rows.append(score_row("copying", copied, null(p), circuit="tokens", target="@repeated",
                              **where))  # fmt: skip
        rows.append(score_row("positional", 0.9 if place[0] == 0 else 0.1,
                              null(1e-9 if place[0] == 0 else 0.5), circuit="positions",
                              target="@shuffled", **where))  # fmt: skip
    return head_table(rows)


def losses(idle: tuple[int, int]) -> pd.DataFrame:
    return head_table(
        score_row("loss_increase", 0.0 if place == idle else 0.5,
                  null(0.6 if place == idle else 1e-9), component="head", layer=place[0],
                  head=place[1], target="loss@repeated",
                  interval=(-0.1, 0.1) if place == idle else (0.4, 0.6))
        for place in PLACES
    )  # fmt: skip


def weights(composed: float) -> pd.DataFrame:
    return head_table(
        score_row("k_composition", composed, Null(0.1, 0.01, 1e-6 if composed > 0.1 else 0.5),
                  component="head", layer=1, head=head, circuit="QK", target=f"L0H{writer}")
        for head in range(3) for writer in range(3)
    )  # fmt: skip


def status(roles: pd.DataFrame) -> dict[tuple[str, int, int], str]:
    return {(r.role, r.layer, r.head): r.status for r in roles.itertuples()}


def test_behaviour_cause_and_composition_make_a_role() -> None:
    roles = role_table(behaviour(), losses(idle=(0, 1)), weights(0.5))
    assert status(roles) == {
        ("previous-token", 0, 0): "confirmed",
        ("previous-token", 0, 1): "candidate",
        ("duplicate-token", 1, 2): "confirmed",
        ("induction", 1, 0): "confirmed",
        ("induction", 1, 1): "confirmed",
        ("copying", 1, 0): "confirmed",
        ("anti-copying", 1, 1): "confirmed",
        ("positional", 0, 2): "confirmed",
    }
    induction = roles[roles["role"] == "induction"].iloc[0]
    assert "K-composition with L0H" in induction["evidence"]
    assert induction["effect"] == 0.5
    assert roles["role"].tolist()[0] == "previous-token"


def test_without_composition_induction_is_a_candidate() -> None:
    found = status(role_table(behaviour(), losses(idle=(0, 2)), weights(0.05)))
    assert found["induction", 1, 0] == "candidate"
    assert found["previous-token", 0, 1] == "confirmed"
    assert found["positional", 0, 2] == "candidate"


def test_composition_must_be_half_as_much_again_as_that_of_random_directions() -> None:
    for composed, expected in ((0.14, "candidate"), (0.16, "confirmed")):
        roles = role_table(behaviour(), losses(idle=(0, 2)), weights(composed))
        assert status(roles)["induction", 1, 0] == expected
    low = role_table(behaviour(), losses(idle=(0, 2)), weights(0.14))
    assert "0.40, below the floor of 0.5" in low[low["role"] == "induction"].iloc[0]["evidence"]
