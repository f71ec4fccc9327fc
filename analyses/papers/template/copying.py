"""Copying unseen symbols against the embedding's width, with and without the scalars.

A wide model can fit its training strings without copying, so plain models get worse on unseen
symbols as they widen (inverse scaling); bI gives an attention-weighted skip connection, and copying
works at any width. Embeddings stay as they start, which is what the theory is about: in a narrow
stream unseen symbols are combinations of seen ones, in a wide one they are orthogonal to them. Were
embeddings trained, those of seen symbols would move and those of unseen ones not, at any width.
Runs that do not fit their training strings say nothing about generalisation: they are counted and
left out.

*Fixed* copying is αβα → β. *Induction-style* copying asks for the symbol that followed the last
one's earlier occurrence, in two layers: b copies, and a finds the occurrence.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analyses.figures.dots import accuracy_sweep
from analyses.papers.base import Drawing, Setting, Status, Verdict
from analyses.papers.experiment import by_seed, decide
from analyses.papers.template.circuits import circuit_drawing, scalar_drawing
from analyses.papers.template.models import (
    NAMES,
    count_unfitted,
    fitted_runs,
    on_unseen,
    spec_of,
    task_sizes,
)
from prooflens.tasks import TemplateTask, copying, induction_style

__all__ = ["copying_width", "induction"]

_TRAINED = ("blocks.*", "pos_embed.*")


def copying_width(setting: Setting) -> Verdict:
    """Test copying αβα → β against the embedding's width (ledger: ``template-copying-width``)."""
    return _judge(setting, copying(**task_sizes(setting.options)), scalars="b", n_layers=1)


def induction(setting: Setting) -> Verdict:
    """Test copying what followed an earlier occurrence (ledger: ``template-induction-copying``)."""
    task = induction_style(setting.options["length"], **task_sizes(setting.options))
    return _judge(setting, task, scalars="ab", n_layers=2)


def _judge(setting: Setting, task: TemplateTask, scalars: str, **changes: Any) -> Verdict:
    options = setting.options
    experiment = on_unseen(setting, rows=options["rows"], parameters=_TRAINED)
    for kind in ("", scalars):
        for width in options["widths"]:
            spec = spec_of(task, options, kind, d_model=width, **changes)
            experiment.add({"model": NAMES[kind], "width": width}, task, spec)
    table, fits = experiment.run()
    kept = fitted_runs(table)
    means = kept.groupby(["model", "width"])["accuracy"].mean().unstack()
    figure = accuracy_sweep(
        kept if len(kept) else table,
        x="width",
        across="embedding width d_model",
        chance=1 / (2 * options["symbols"]),
    )
    first, last = min(options["widths"]), max(options["widths"])
    plain, scalar = (_row(means, NAMES[kind], options["widths"]) for kind in ("", scalars))
    status, words = _verdict(plain, scalar, first, last, NAMES[scalars])
    lost = count_unfitted(table)
    words += f" Left out because they do not fit their training strings: {lost}." if lost else ""
    numbers = {
        "plain": plain,
        NAMES[scalars]: scalar,
        "not_fitted": lost,
        "accuracy": by_seed(table, ["model", "width"], "accuracy", between=" "),
        "train_accuracy": by_seed(table, ["model", "width"], "train_accuracy", between=" "),
    }
    rows = {"plain": plain, NAMES[scalars]: scalar}
    key = f"at widths {', '.join(map(str, options['widths']))}: " + "; ".join(
        f"{name} {', '.join(map(_words, row.values()))}" for name, row in rows.items()
    )
    return Verdict(
        status,
        words,
        key,
        numbers,
        {"accuracy": table},
        {
            "accuracy": Drawing(figure, "Accuracy on unseen symbols against width, a dot a seed."),
            "circuits": circuit_drawing(
                experiment.planned, fits, "OV", len(task.regular) + task.train[0]
            ),
            "scalars": scalar_drawing(experiment.planned, fits, scalars[-1]),
        },
    )


def _verdict(
    plain: dict[str, float | None],
    scalar: dict[str, float | None],
    first: int,
    last: int,
    name: str,
) -> tuple[Status, str]:
    """Decide by the ledger's rule: accuracy falls with width without scalars, and every width
    succeeds with the scalar ``name``."""
    narrow, wide = plain[str(first)], plain[str(last)]
    told = f"Plain models fall from {_words(narrow)} at width {first} to {_words(wide)} at {last}"
    known = [v for v in scalar.values() if v is not None]
    works = len(known) == len(scalar) and min(known) >= 0.9
    told += f"; {name}, the worst width has {_words(min(known, default=None))}."
    if narrow is None or wide is None:
        return ("partly" if works else "not run"), told
    falls = narrow - wide >= 0.3
    return decide(falls and works, falls or works), told


def _row(means: pd.DataFrame, name: str, widths: Any) -> dict[str, float | None]:
    found = {}
    for width in widths:
        known = name in means.index and width in means.columns
        value = float(means.loc[name, width]) if known else float("nan")
        found[str(width)] = value if value == value else None
    return found


def _words(value: float | None) -> str:
    return "no fitted run" if value is None else f"{value:.2f}"
