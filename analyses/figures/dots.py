"""Settings side by side: an accuracy or share of many models, with a dot for each.

accuracy_sweep   over an ordered quantity: a line of means, a dot a seed, chance dashed
strips           settings that have no order: a row of dots a setting
points           settings that have an order and nothing between them: dots without lines
lengths          lengths of proofs against what is unexplained, a dot a seed
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from analyses.figures.sweep import COLOURS, MARKERS, sweep
from prooflens.plot import MUTED, size, style

__all__ = ["accuracy_sweep", "points", "strips"]


def accuracy_sweep(
    table: pd.DataFrame,
    *,
    x: str,
    across: str,
    y: str = "accuracy",
    label: str = "accuracy on unseen symbols",
    chance: float | None = None,
    log_x: bool = True,
) -> Figure:
    """Draw an accuracy or a share against an ordered quantity: :func:`sweep` on a linear scale,
    with a line of means over seeds and a dashed line at the chance level."""
    return sweep(
        table,
        x=x,
        across=across,
        by="model",
        label=label,
        y=y,
        levels={} if chance is None else {"chance": chance},
        middle="mean",
        log_x=log_x,
        log_y=False,
    )


def strips(
    table: pd.DataFrame,
    *,
    group: str,
    y: str = "accuracy",
    label: str = "accuracy on unseen symbols",
    by: str = "model",
    chance: float | None = None,
) -> Figure:
    """Draw settings that have no order: a row of dots for each setting, in one colour per model.

    Args:
        table: A tidy table with one row per trained model.
        group: Column of the settings, shown down the side in order of appearance.
        y: The column that is plotted on the horizontal axis.
        label: The label of the horizontal axis, with its unit.
        by: The column that names the models.
        chance: The value that guessing gives, drawn as a dashed line.
    """
    settings, names = list(dict.fromkeys(table[group])), list(dict.fromkeys(table[by]))
    beside = table.groupby(group)[by].nunique().max() > 1
    with style():
        figure = Figure(figsize=(5.4, 0.32 * len(settings) + 1.1))
        axes = figure.add_subplot()
        for i, name in enumerate(names):
            rows = table[table[by] == name]
            shift = 0.2 * (i - (len(names) - 1) / 2) if beside else 0.0
            height = [settings.index(s) + shift for s in rows[group]]
            _dots(axes, rows[y], height, str(name), i)
        axes.set_yticks(range(len(settings)), [str(s) for s in settings])
        axes.invert_yaxis()
        axes.set_xlabel(label)
        if chance is not None:
            axes.axvline(chance, color=MUTED, ls="--", lw=0.9, zorder=0)
        if len(names) > 1 and group != by:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def points(
    table: pd.DataFrame,
    *,
    x: str,
    across: str,
    y: str = "accuracy",
    label: str = "accuracy on unseen symbols",
    by: str = "model",
    chance: float | None = None,
) -> Figure:
    """Draw one dot per row of a table over a logarithmic axis, in one colour per model.

    Args:
        table: A tidy table.
        x: Column with the quantity that orders the settings; its values are above 0.
        across: The label of the horizontal axis.
        y: The column that is plotted on the vertical axis.
        label: The label of the vertical axis, with its unit.
        by: The column that names the models.
        chance: The value that guessing gives, drawn as a dashed line.
    """
    with style():
        figure = Figure(figsize=size(1.1, 1.8))
        axes = figure.add_subplot()
        for i, (name, rows) in enumerate(table.groupby(by, sort=False)):
            _dots(axes, rows[x], rows[y], str(name), i)
        if chance is not None:
            axes.axhline(chance, color=MUTED, ls="--", lw=0.9, zorder=0)
        axes.set_xscale("log")
        axes.set(xlabel=across, ylabel=label)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _dots(axes: Axes, x: ArrayLike, y: ArrayLike, name: str, number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    axes.scatter(x, y, s=16, color=colour, marker=marker, alpha=0.8, label=name)
