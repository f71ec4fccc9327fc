"""A role's sentence says what its effect is of."""

import json
from typing import Any

import pandas as pd
import pytest

from prooflens.pages.inspection import inspection_findings


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "without L0H0 the output changes by a share of its variance of",
            "without it the output changes by 0.87 of its variance.",
        ),
        ("r² of x[t-t_2] lost without L0H0", "r² of x[t-t_2] lost without L0H0 0.87."),
    ],
)
def test_a_sentence_says_what_an_effect_is_of(name: str, said: str) -> None:
    test: dict[str, Any] = {"name": name, "kind": "cause", "score": 0.868, "floor": 0.4, "q": 0.0}
    row = {
        "component": "layer", "layer": 1, "head": -1, "group": "", "role": "nested-round",
        "target": "x[t-t_2]", "strength": 0.868, "effect": 0.868, "status": "confirmed",
        "tests": json.dumps([{**test, "p": 0.0, "low": None, "high": None}]),
    }  # fmt: skip
    about = {"profile": "task", "unit": "variance", "level": 0.01, "trials": []}
    sentence, _ = inspection_findings({"roles": pd.DataFrame([row])}, about)
    assert sentence == f"L1 plays nested-round of x[t-t_2] (strength 0.87); {said}"
