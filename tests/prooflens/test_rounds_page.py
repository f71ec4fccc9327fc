"""Rounds of nested memories as a reader sees them: a row a latent, two models side by side."""

import json
from typing import Any

import pandas as pd

from prooflens.pages.inspection import inspection_findings
from prooflens.pages.rounds import rounds_in_words, rounds_side_by_side

NAN = float("nan")
COLUMNS = ["model", "latent", "layer", "after", "r2", "without", "lost", "before"]
ROUNDS = pd.DataFrame(
    [
        ("trained", "t_1", -1, "embedding", 0.97, "", NAN, NAN),
        ("trained", "x[t-t_2]", 1, "attention", 0.99, "L1H0", 0.93, 0.84),
        ("constructed", "t_1", 0, "FFN", 1.0, "L0 FFN", 0.2, NAN),
        ("constructed", "x[t-t_2]", -1, "nowhere", 0.4, "", NAN, NAN),
    ],
    columns=COLUMNS,
)


def test_two_models_stand_side_by_side() -> None:
    found = rounds_side_by_side(ROUNDS).set_index("latent")
    assert found.loc["x[t-t_2]", "trained"] == "first after layer 1's attention, r² 0.99"
    broken = "without L1H0 it falls by 0.93; without the heads of the round before by 0.84"
    assert found.loc["x[t-t_2]", "trained: broken"] == broken
    assert found.loc["t_1", "trained"] == "in the embedding, r² 0.97"
    assert found.loc["t_1", "constructed: broken"] == "without L0 FFN it falls by 0.20"
    assert found.loc["x[t-t_2]", "constructed"] == "nowhere, r² 0.40"
    assert found.loc["x[t-t_2]", "constructed: broken"] == "by no component"
    said = list(rounds_in_words(ROUNDS))
    assert said[0] == "trained: t_1 in the embedding, r² 0.97"
    assert said[1].endswith(f"r² 0.99; {broken}")


def test_a_sentence_says_what_an_effect_is_of() -> None:
    name = "r² of x[t-t_2] lost without L0H0"
    test: dict[str, Any] = {"name": name, "kind": "cause", "score": 0.868, "floor": 0.4, "q": 0.0}
    row = {
        "component": "layer", "layer": 1, "head": -1, "group": "", "role": "nested-round",
        "target": "x[t-t_2]", "strength": 0.868, "effect": 0.868, "status": "confirmed",
        "tests": json.dumps([{**test, "p": 0.0, "low": None, "high": None}]),
    }  # fmt: skip
    about = {"profile": "task", "unit": "variance", "level": 0.01, "trials": []}
    sentence, _ = inspection_findings({"roles": pd.DataFrame([row])}, about)
    assert sentence == f"L1 plays nested-round of x[t-t_2] (strength 0.87); {name} 0.87."
