"""Does training find the proof? The share of seeds, over the settings of a diagram.

    found       a model that solves its task and works as the proof does (:mod:`.steps`)
    a cell      all seeds of one setting: found *there* from three quarters of them on, *not* found
                up to a quarter; no more seeds are taken once it is settled which

The ledger names the settings in which the proof is expected to be found and those in which it is
not, before the diagram is run; the verdict says whether training agrees. Beside the shares stand
exact (Clopper–Pearson) 95 % intervals: four seeds of four are .40 to 1, so single cells say little,
rows and columns say more.

This is about training as it is written there (AdamW, one rate, so many steps). That a model was
not found says nothing of other trainings; that one was, nothing of larger models.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from analyses.figures.shares import ShareMap, Strip, shares_figure
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from analyses.papers.training import models
from analyses.papers.training.measured import Builder, agreements, models_of
from analyses.papers.training.points import check_parts, parts_of, rows_at, varied_options

__all__ = [
    "adaptive",
    "check",
    "counting",
    "draw_diagram",
    "equality",
    "induction",
    "nested_memory",
    "setting_in_words",
    "settings_like",
    "shares",
]

_FOUND, _NOT_FOUND, _MOST = 0.75, 0.25, 0.75
_COUNTS = ["models", "solved", "found"]
_WORDS = {
    "ffn": "FFN width",
    "first": "FFN before, width",
    "weight_decay": "weight decay",
    "locations": "lags",
    "blocks": "blocks k",
    "rows": "training strings",
    "identity": "factor on aI",
    "d_model": "width",
    "spare": "layers beyond k − 2",
}
"""Name of an option → the words for it in the diagram, where they differ."""


def adaptive(setting: Setting) -> Verdict:
    """Run the claim ``training-finds-adaptive``: one round, in which a head attends where a token
    says."""
    return _judge(setting, models.memory)


def nested_memory(setting: Setting) -> Verdict:
    """Run the claim ``training-finds-nested``: two rounds, each in a layer of its own."""
    return _judge(setting, models.memory)


def induction(setting: Setting) -> Verdict:
    """Run the claim ``training-finds-induction``: first the previous token, then its successor."""
    return _judge(setting, models.induction)


def equality(setting: Setting) -> Verdict:
    """Run the claim ``training-finds-equality``: attention to equal symbols."""
    return _judge(setting, models.equality)


def counting(setting: Setting) -> Verdict:
    """Run the claim ``training-finds-counting``: one count in each layer."""
    return _judge(setting, models.counting)


def check(setting: Setting) -> None:
    """Refuse maps and strips over options that the profile does not name."""
    check_parts(setting.options)


def shares(table: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """Count for each setting how many of its models solved the task, and how many work as the proof
    does.

    Args:
        table: One row per model (:func:`analyses.papers.training.measured.models_of`).
        options: The options of the profile.

    Returns:
        The options that vary; ``models``, ``solved``, ``found``; ``share`` = found/models with its
        exact 95 % interval ``low`` … ``high``; ``weakest``: among the models that solved the task,
        the median share of the latent that is held least.
    """
    rows = []
    for values, group in table.groupby(list(varied_options(options)), sort=False):
        count, found = len(group), int(group["found"].sum())
        interval = binomtest(found, count).proportion_ci(0.95)
        weakest = group.loc[group["solved"], "weakest"].median()
        numbers = (count, int(group["solved"].sum()), found, found / count, *interval, weakest)
        rows.append((*values, *numbers))
    names = [*varied_options(options), *_COUNTS, "share", "low", "high", "weakest"]
    return pd.DataFrame(rows, columns=names)


def draw_diagram(cells: pd.DataFrame, options: Mapping[str, Any]) -> Drawing:
    """The figure of a diagram: its map and its strips.

    Args:
        cells: From :func:`shares`.
        options: The profile's.
    """
    first, *rest = parts_of(options)

    def counts_at(changes: Mapping[str, Any]) -> tuple[int, int, int]:
        row = rows_at(cells, changes, options)[_COUNTS].iloc[0]
        return int(row["models"]), int(row["solved"]), int(row["found"])

    counts = [counts_at(point) for point in first.points()]
    wide = len(first.columns)
    grid = ShareMap(
        _WORDS.get(first.across, first.across),
        [_value_text(v) for v in first.columns],
        _WORDS.get(first.down, first.down),
        [_value_text(v) for v in first.rows],
        [counts[i : i + wide] for i in range(0, len(counts), wide)],
    )
    strips = [
        Strip(
            _WORDS.get(part.across, part.across),
            [_value_text(v) for v in part.columns],
            [counts_at(point) for point in part.points()],
            ", ".join(_named_value(*pair) for pair in part.given),
        )
        for part in rest
    ]
    said = (
        f"Shares of seeds that solve the task and that work as the proof does, over {first.across} "
        f"and {first.down}, and over {len(rest)} further options one at a time."
    )
    return Drawing(shares_figure(grid, strips), said)


def setting_in_words(point: Mapping[Any, Any], options: Mapping[str, Any]) -> str:
    """Describe a setting by its differences from the profile."""
    other = {name: point[name] for name in varied_options(options) if point[name] != options[name]}
    return ", ".join(map(_named_value, other, other.values())) or "as the profile says"


def _named_value(name: str, value: Any) -> str:
    return f"{_WORDS.get(name, name)} {_value_text(value)}"


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _judge(setting: Setting, build: Builder) -> Verdict:
    """Train and measure the models, and decide by the rule that all diagrams share."""
    options, seeds = setting.options, len(setting.seeds)

    def needed_counts(points: pd.DataFrame) -> list[int]:
        counts = pd.Series(ceil(_FOUND * seeds), index=points.index)
        counts[settings_like(points, options["otherwise"])] = floor(_NOT_FOUND * seeds) + 1
        return counts.tolist()

    table = models_of(setting, build, needed_counts)
    cells, agreed = shares(table, options), agreements(setting, build, table)
    expected = settings_like(cells, options["found"])
    unexpected = settings_like(cells, options["otherwise"])
    right = pd.concat(
        [cells.loc[expected, "share"] >= _FOUND, cells.loc[unexpected, "share"] <= _NOT_FOUND]
    )
    wrong = cells.loc[right.index[~right], list(varied_options(options))].to_dict("records")
    solved, found = int(table["solved"].sum()), int(table["found"].sum())
    words = (
        f"Of {len(table)} models in {len(cells)} settings {solved} solve the task and {found} work "
        f"as the proof does. As expected in {int(right.sum())} of {len(right)} settings: found in "
        f"{int(right[: len(expected)].sum())} of {len(expected)}, not found in "
        f"{int(right[len(expected) :].sum())} of {len(unexpected)}."
    )
    if wrong:
        words += (
            f" Otherwise: {'; '.join(setting_in_words(point, options) for point in wrong[:8])}."
        )
    numbers = {
        "models": len(table),
        "solved": solved,
        "found": found,
        "as expected": [int(right.sum()), len(right)],
        "otherwise": wrong,
        "cells": cells.to_dict("records"),
        "agreement": agreed.to_dict("records"),
    }
    return Verdict(
        decide(bool(right.all()), right.mean() >= _MOST),
        words,
        f"{found} of the {solved} models that solve the task work as the proof does",
        numbers,
        {"shares": cells, "models": table, "agreement": agreed},
        {"shares": draw_diagram(cells, options)},
    )


def settings_like(cells: pd.DataFrame, named: list[Mapping[str, Any]]) -> list[int]:
    """Return the settings that match at least one of the given combinations of values, each once
    and in order."""
    found: dict[int, None] = {}
    for values in named:
        same = pd.Series(data=True, index=cells.index)
        for name, value in values.items():
            same &= cells[name].isin(value if isinstance(value, list) else [value])
        found |= dict.fromkeys(cells.index[same])
    return list(found)
