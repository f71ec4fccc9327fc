"""The section that puts the proof's program beside the one that was found in a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import pandas as pd

from interp.rasp import program_text
from probes.decompile.workflow import Decompiled
from prooflens.pages.page import Section, Table

__all__ = ["beside_the_proof"]

_ROWS = {"held": "held-out rows", "longer": "longer rows", "off_task": "rows off the task"}


def beside_the_proof(found: Decompiled) -> Iterator[Section]:
    """Both programs line by line, and what tells them apart; nothing for a task without a proof."""
    shown = found.proof
    if shown is None:
        return
    texts = (program_text(one).splitlines() for one in (shown.program, found.best.program))
    lines = pd.DataFrame(list(zip_longest(*texts, fillvalue="")), columns=["proof", "found"])
    shares = pd.DataFrame(
        [(_ROWS[part], shown.model[part], shown.found[part]) for part in _ROWS],
        columns=["rows", "proof decides as the model", "proof decides as the program found"],
    )
    yield Section(
        "Did training find the proof?",
        [_answered(found)],
        tables=[
            Table(lines, "The proof's program and the one that was found."),
            Table(shares, "Shares of decisions taken alike."),
        ],
    )


def _answered(found: Decompiled) -> str:
    shown = found.proof
    if shown is None:
        return ""
    on = min(shown.model["held"], shown.model["longer"])
    off = shown.model["off_task"]
    if min(on, off) >= 1.0:
        same = "the same lines" if shown.program == found.best.program else "other lines"
        return (
            "In what it decides, yes: on every row that was looked at, also off the task, the "
            f"model decides as the proof's program. The program found says so in {same}; which of "
            "them the weights hold, decisions do not tell: see what each head does."
        )
    if on >= 1.0:
        return (
            "No: on the task the model decides as the proof's program, but off the task only in "
            f"{off:.3f} of the decisions. What it computes is right where the task asks it, and "
            "something else."
        )
    return (
        f"No: the model decides as the proof's program in {on:.3f} of the decisions on the task "
        f"and {off:.3f} off it."
    )
