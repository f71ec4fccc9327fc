"""Are there short programs in models that somebody else trained? (`decompile`, arXiv 2602.08857)

The models are not ours and not shipped: a folder with a folder for each (weights in GPT-2's format
and ``rows.json``), which ``PROOFLENS_DECOMPILE`` or the option ``models`` names. Each is decompiled
once a seed; the seed decides which rows are held out and what is asked off the task.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from prooflens.decompiling import LEAST, decompile, read_rows
from prooflens.errors import ProoflensError
from prooflens.trained import load

__all__ = ["run", "verdict_of"]

_VARIABLE = "PROOFLENS_DECOMPILE"
_LINES, _SECONDS, _FEWEST = 10, 120.0, 5
"""Numbers of the claim's rule: largest number of lines of a program, largest processor time per
model in seconds, and least number of models."""


def run(setting: Setting) -> Verdict:
    """Judge the claim on the models in the folder that the options or the environment name."""
    named = os.environ.get(_VARIABLE) or str(setting.options.get("models", ""))
    folders = sorted(path.parent for path in Path(named).glob("*/rows.json")) if named else []
    if len(folders) < _FEWEST:
        words = (
            f"Needs {_FEWEST} models at least, which are not shipped: {_VARIABLE} must name a "
            f"folder with a folder for each (weights and rows.json); {len(folders)} were found."
        )
        return Verdict("not run", words)
    rows = [_one(folder, seed) for folder in folders for seed in setting.seeds]
    return verdict_of(pd.DataFrame(rows), len(folders))


def _one(folder: Path, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"model": folder.name, "seed": seed}
    start = time.process_time()
    try:
        rows = read_rows(folder / "rows.json")
        found = decompile(load(str(folder)), rows, seed=seed)
    except ProoflensError as error:
        return row | {"answer": f"refused: {error}", "short": False, "gain": 0.0}
    best, seconds = found.best, time.process_time() - start
    short = best.program.size <= _LINES and seconds <= _SECONDS
    return row | {
        "answer": found.answer,
        "short": found.answer == "found" and short,
        "gain": best.score,
        "match": min(best.held.match, best.longer.match),
        "gain_off_task": best.off_task.gain,
        "lines": best.program.size,
        "seconds": seconds,
    }


def verdict_of(table: pd.DataFrame, count: int) -> Verdict:
    """The verdict on a table with a row a model and seed.

    Args:
        table: Columns ``model``, ``seed``, ``answer``, ``short`` and ``gain``.
        count: How many models there were.
    """
    needed = table[table["answer"] != "no attention needed"]
    by_model = needed.groupby("model")["short"].all()
    found, asked = int(by_model.sum()), len(by_model)
    if not asked:
        return Verdict("not run", "A table on the current token suffices for all of the models.")
    words = (
        f"A program of at most {_LINES} lines, found within {_SECONDS:.0f} processor seconds, "
        f"decides as the model does (match and gain of at least {LEAST} on held-out and longer "
        f"rows) for {found} of {asked} models on every seed; {count - asked} need no attention."
    )
    figure = sweep(
        table.assign(gain=table["gain"].clip(lower=0.0)),
        x="seed",
        across="seed of the rows held out",
        by="model",
        y="gain",
        label="gain on rows not fitted",
        levels={"found": LEAST},
        log_x=False,
        log_y=False,
    )
    return Verdict(
        decide(found == asked, 2 * found >= asked),
        words,
        key=f"{found} of {asked} models",
        numbers={
            "found": found,
            "models": asked,
            "gain": table["gain"].tolist(),
            "lines": table["lines"].tolist() if "lines" in table else [],
            "seconds": table["seconds"].tolist() if "seconds" in table else [],
        },
        tables={"models": table},
        drawings={"gain": Drawing(figure, "gain of the program found in each model, by seed")},
    )
