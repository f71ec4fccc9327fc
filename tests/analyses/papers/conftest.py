"""The function of the claim that is made up, and a text with its tokenizer."""

import sys
from types import ModuleType

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analyses.language.tokens import train_tokenizer, write_tokenizer
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


@pytest.fixture
def text(tmp_path):
    """A text of Python in ``text.py``, with a tokenizer beside it."""
    said = "def f(x):\n    return x + 1\n" * 40
    (tmp_path / "text.py").write_text(said)
    write_tokenizer(train_tokenizer([said], 300), tmp_path, 16)
    return said
