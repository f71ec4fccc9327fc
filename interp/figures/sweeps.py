"""An error against what was varied: a line of medians a model, a dot a seed.

Lines named in ``dashed`` are what nobody trained: approximations, bounds, floors. They have no
seeds and no dots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from interp.figures.style import MUTED, PALETTE, size, style

__all__ = ["sweep"]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def sweep(
    table: pd.DataFrame,
    *,
    x: str,
    across: str,
    by: str,
    label: str,
    y: str = "error",
    panel: str | None = None,
    dashed: Sequence[str] = (),
    levels: Mapping[str, float] | None = None,
    log_x: bool = True,
    log_y: bool = True,
    least: float = 0.0,
) -> Figure:
    """Medians over seeds with a dot a seed.

    Args:
        table: Tidy, one row a model and seed.
        x: Column that was varied.
        across: What it is, with its unit.
        by: Column of the lines.
        label: What is shown, with its unit.
        y: Column that is shown.
        panel: Column with a panel a value.
        dashed: Values of ``by`` that are drawn dashed, without dots.
        levels: Legend → height of a horizontal line.
        log_x, log_y: Logarithmic axes.
        least: Values below are drawn there (an axis of forty decades shows nothing).
    """
    panels = [None] if panel is None else list(dict.fromkeys(table[panel]))
    names = list(dict.fromkeys(table[by]))
    table = table.assign(**{y: table[y].clip(lower=least or None)})
    with style():
        figure = Figure(figsize=size(1.1, 1.02 * len(panels) + 0.75))
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, value in zip(grid, panels, strict=True):
            rows = table if panel is None else table[table[panel] == value]
            _lines(axes, rows, names, x, y, by, set(dashed))
            for name, height in (levels or {}).items():
                axes.axhline(height, color=MUTED, ls=":", lw=1, label=name, zorder=0)
            axes.set(xlabel=across, title="" if value is None else str(value))
            _scales(axes, sorted(rows[x].astype(float).unique().tolist()), log_x, log_y)
        grid[0].set_ylabel(label)
        handles = {n: h for axes in grid for h, n in zip(*axes.get_legend_handles_labels(),
                                                         strict=True)}  # fmt: skip
        grid[-1].legend(
            list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )
    return figure


def _lines(
    axes: Axes, rows: pd.DataFrame, names: Sequence[str], x: str, y: str, by: str, dashed: set[str]
) -> None:
    colours = [c for name, c in PALETTE.items() if name != "yellow"]
    for i, name in enumerate(names):
        mine = rows[rows[by] == name]
        if not len(mine):
            continue
        middle = mine.groupby(x)[y].median()
        colour, loose = colours[i % len(colours)], name in dashed
        axes.plot(
            middle.index, middle, "--" if loose else "-", color=colour, label=str(name),
            marker="" if loose else _MARKERS[i % len(_MARKERS)],
        )  # fmt: skip
        if not loose:
            axes.scatter(mine[x], mine[y], s=10, color=colour, alpha=0.5, lw=0)


def _scales(axes: Axes, values: Sequence[float], log_x: bool, log_y: bool) -> None:
    if log_x and min(values) > 0:
        axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    step = -(-len(values) // 7)
    axes.set_xticks(values[::step], [f"{v:.3g}" if v < 1000 else f"{v:g}" for v in values[::step]])
    axes.xaxis.set_minor_locator(NullLocator())
