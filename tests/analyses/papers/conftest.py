"""The function of the claim that is made up."""

import sys
from types import ModuleType

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analyses.papers.base import Drawing, Setting, Verdict
from interp.errors import StoreError


@pytest.fixture
def module(monkeypatch):
    """Functions of claims that can be told what to do."""
    made = ModuleType("made_up_claims")
    made.calls = []

    def addition(setting: Setting) -> Verdict:
        made.calls.append(setting)
        if setting.options.get("broken"):
            (setting.folder / "half").write_text("done")
            raise StoreError("the disk is full")
        figure = Figure(figsize=(4, 3))
        figure.subplots().plot([0, 1])
        total = setting.options["first"] + 1
        return Verdict(
            "reproduced" if total == 2 else "not reproduced",
            f"The sum is {total} <b>in every seed</b>.",
            key=f"sum {total}",
            numbers={"sum": [total, float("nan")]},
            tables={"sums": pd.DataFrame({"seed": setting.seeds, "sum": total})},
            drawings={"line": Drawing(figure, "a rising line")},
        )

    made.addition = addition
    monkeypatch.setitem(sys.modules, "made_up_claims", made)
    return made
