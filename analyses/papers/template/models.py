"""The models that the claims of `template` train, and the tables they are judged by.

One-layer transformers with learned positions, trained on a fixed set of n strings and tested on
symbols that were never seen. ``plain`` has no scalars, ``+ aI`` and ``+ bI`` have the identity
scalars of `template` §2.2, started at 0 and acting times a multiplier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyses.papers.base import Setting, Verdict
from analyses.papers.experiment import Experiment
from prooflens.architectures import TransformerSpec
from prooflens.tasks import TemplateTask

__all__ = [
    "FITTED",
    "NAMES",
    "count_unfitted",
    "fewest_strings",
    "fitted_runs",
    "on_unseen",
    "spec_of",
    "task_sizes",
    "unfitted_verdict",
]

FITTED = 0.99
"""Least training accuracy of a run that counts. A run that does not fit its training strings says
nothing about generalisation."""

NAMES = {"": "plain", "a": "+ aI", "b": "+ bI", "ab": "+ aI + bI"}


def task_sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the alphabets of the training symbols and of the test symbols; each has
    ``options["symbols"]`` symbols."""
    symbols = options["symbols"]
    return {"train": (0, symbols), "test": (symbols, 2 * symbols)}


def spec_of(
    task: TemplateTask, options: Mapping[str, Any], scalars: str = "", **changes: Any
) -> TransformerSpec:
    """Return the spec of the transformer for a task, with the profile's sizes and the named
    identity scalars."""
    sizes: dict[str, Any] = {
        "d_in": task.vocabulary,
        "d_out": task.vocabulary if task.symbolic else 1,
        "n_ctx": task.length,
        "d_model": changes.get("d_model") or options["d_model"],
        "n_layers": 1,
        "n_heads": options["heads"],
        "d_head": options["d_head"],
        "ffn": (options["ffn"],),
        "positions": "learned",
        "tied_unembedding": task.symbolic,
        "identity_qk": "a" in scalars,
        "identity_ov": "b" in scalars,
        "identity_multiplier": options["multiplier"] if scalars else 1.0,
    }
    return TransformerSpec(**{**sizes, **changes})


def on_unseen(setting: Setting, **training: Any) -> Experiment:
    """Return an experiment whose runs are tested on symbols that did not occur in training."""
    return Experiment(setting, test=TemplateTask.unseen, **training)


def fitted_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the runs that fit their training strings. Runs that do not say nothing
    about generalisation."""
    return table[table["train_accuracy"] >= FITTED]


def count_unfitted(table: pd.DataFrame) -> dict[str, int]:
    """Return, for each model, the number of runs that :func:`fitted_runs` leaves out."""
    counts = (table["train_accuracy"] < FITTED).groupby(table["model"], sort=False).sum()
    return {str(name): int(count) for name, count in counts.items() if count}


def unfitted_verdict(table: pd.DataFrame) -> Verdict | None:
    """Return the verdict of a claim for which some model has no run that fits its training strings;
    None if every model has one."""
    models = set(table["model"]) - set(fitted_runs(table)["model"])
    if not models:
        return None
    told = ", ".join(sorted(map(str, models)))
    words = f"No run fits its training strings ({told}): nothing is said about generalisation."
    return Verdict("not run", words, tables={"accuracy": table})


def fewest_strings(table: pd.DataFrame, *, accuracy: float) -> dict[str, float]:
    """Return, for each model, the smallest number n of training strings from which on the mean
    accuracy over seeds stays at least ``accuracy``; ∞ if there is none."""
    found = {}
    for name, rows in table.groupby("model", sort=False):
        means = rows.groupby("n")["accuracy"].mean().sort_index(ascending=False)
        reached = float("inf")
        for n, mean in means.items():
            if mean < accuracy:
                break
            reached = float(n)  # type: ignore[arg-type]
        found[str(name)] = reached
    return found
