"""Accuracy (or any share) against a quantity that was varied, one line a model, every seed shown.

Lines join means over seeds, dots are single seeds, so that a spread is seen and not summarised. A
dashed line marks chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from interp.figures.style import MUTED, PALETTE, size, style

__all__ = ["curves", "strips"]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def curves(
    table: pd.DataFrame,
    *,
    x: str,
    across: str,
    y: str = "accuracy",
    label: str = "accuracy on unseen symbols",
    by: str = "model",
    panel: str | None = None,
    chance: float | None = None,
    logarithmic: bool = True,
) -> Figure:
    """Lines of means over seeds with a dot a seed.

    Args:
        table: Tidy, one row a trained model.
        x: Column that was varied.
        across: What it is, with its unit.
        y: Column that is shown.
        label: What that is, with its unit.
        by: Column of the models.
        panel: Column with a panel a value.
        chance: What guessing gives.
        logarithmic: The horizontal axis is log₂.
    """
    panels = [None] if panel is None else list(dict.fromkeys(table[panel]))
    names = list(dict.fromkeys(table[by]))
    with style():
        figure = Figure(figsize=size(1.1, 1.25 * len(panels)))
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, value in zip(grid, panels, strict=True):
            rows = table if panel is None else table[table[panel] == value]
            _lines(axes, rows, names, x, y, by)
            _ticks(axes, sorted(table[x].astype(float).unique().tolist()), logarithmic)
            axes.set(xlabel=across, title="" if value is None else str(value))
            if chance is not None:
                axes.axhline(chance, color=MUTED, ls="--", lw=0.9, zorder=0)
        grid[0].set_ylabel(label)
        grid[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def strips(
    table: pd.DataFrame,
    *,
    group: str,
    y: str = "accuracy",
    label: str = "accuracy on unseen symbols",
    by: str = "model",
    chance: float | None = None,
) -> Figure:
    """A row of dots for every setting, one colour a model: for variations without an order.

    Args:
        table: Tidy, one row a trained model.
        group: Column of the settings, shown down the side in order of appearance.
        y, label, by, chance: As in :func:`curves`.
    """
    settings, names = list(dict.fromkeys(table[group])), list(dict.fromkeys(table[by]))
    colours = list(PALETTE.values())
    with style():
        figure = Figure(figsize=(5.4, 0.32 * len(settings) + 1.1))
        axes = figure.add_subplot()
        for i, name in enumerate(names):
            rows = table[table[by] == name]
            shift = 0.0 if group == by else 0.2 * (i - (len(names) - 1) / 2)
            height = [settings.index(s) + shift for s in rows[group]]
            axes.scatter(
                rows[y], height, s=16, color=colours[i], marker=_MARKERS[i], alpha=0.8, label=name
            )
        axes.set_yticks(range(len(settings)), [str(s) for s in settings])
        axes.invert_yaxis()
        axes.set_xlabel(label)
        if chance is not None:
            axes.axvline(chance, color=MUTED, ls="--", lw=0.9, zorder=0)
        if len(names) > 1 and group != by:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _lines(axes: Axes, rows: pd.DataFrame, names: Sequence[str], x: str, y: str, by: str) -> None:
    colours = list(PALETTE.values())
    for i, name in enumerate(names):
        mine = rows[rows[by] == name]
        if not len(mine):
            continue
        means = mine.groupby(x)[y].mean()
        axes.plot(means.index, means, color=colours[i], marker=_MARKERS[i], label=str(name))
        axes.scatter(mine[x], mine[y], s=9, color=colours[i], alpha=0.55, lw=0)


def _ticks(axes: Axes, values: Sequence[float], logarithmic: bool) -> None:
    if logarithmic and min(values) > 0:
        axes.set_xscale("log", base=2)
    step = int(np.ceil(len(values) / 8))
    axes.set_xticks(values[::step], [f"{v:.3g}" if v < 1000 else f"{v:g}" for v in values[::step]])
    axes.xaxis.set_minor_locator(NullLocator())
