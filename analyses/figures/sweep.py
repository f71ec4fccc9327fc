"""A number against the quantity that was varied: one line per model, every seed shown.

Single seeds are dots, so that a spread is seen and not summarised. Lines named in ``dashed`` are
what nobody trained: approximations, bounds, floors. They have no seeds and no dots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from prooflens.plot import INK, MUTED, PALETTE, size, style

__all__ = ["COLOURS", "MARKERS", "sweep"]

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLOURS = [colour for name, colour in PALETTE.items() if name != "yellow"]


def sweep(
    table: pd.DataFrame,
    *,
    x: str,
    across: str | Mapping[str, str],
    by: str,
    label: str,
    y: str = "error",
    panel: str | None = None,
    dashed: Sequence[str] = (),
    levels: Mapping[str, float] | None = None,
    at: Mapping[str, tuple[str, float]] | None = None,
    slopes: Mapping[str, float] | None = None,
    middle: str = "median",
    log_x: bool = True,
    log_y: bool = True,
    least: float = 0.0,
) -> Figure:
    """Draw a number against the quantity that was varied: for each model a line through the median
    or mean of its seeds, with a dot for each seed.

    Args:
        table: A tidy table with one row per model and seed.
        x: The column with the quantity that was varied.
        across: The label of the horizontal axis: what was varied, with its unit; or panel → label.
        by: The column whose values are the lines.
        label: The label of the vertical axis: what is shown, with its unit.
        y: The column that is plotted on the vertical axis.
        panel: A column whose values get a panel each; None for one panel.
        dashed: Values of ``by`` that are drawn dashed, without dots.
        levels: Legend entry → height of a horizontal line.
        at: Panel → legend and place of a vertical line.
        slopes: Panel → the theory's slope in double logarithmic scale, drawn through the middle of
            the panel's first model at its smallest x.
        middle: Which average over seeds the line shows, ``median`` or ``mean``.
        log_x, log_y: Whether the axes are logarithmic.
        least: Smaller values are drawn at this height, because an axis of forty decades shows
            nothing.
    """
    panels = [None] if panel is None else list(dict.fromkeys(table[panel]))
    names = list(dict.fromkeys(table[by]))
    table = table.assign(**{y: table[y].clip(lower=least or None)})
    with style():
        figure = Figure(figsize=size(1.1, 1.02 * len(panels) + 0.75))
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, value in zip(grid, panels, strict=True):
            rows = table if panel is None else table[table[panel] == value]
            for i, name in enumerate(names):
                mine = rows[rows[by] == name]
                _line(axes, mine, str(name), i, x, y, middle, loose=name in dashed)
            for name, height in (levels or {}).items():
                axes.axhline(height, color=MUTED, ls=":", lw=1, label=name, zorder=0)
            title = "" if value is None else str(value)
            if at and title in at:
                name, place = at[title]
                axes.axvline(place, color=MUTED, ls=":", lw=1, label=name, zorder=0)
            if slopes and title in slopes:
                _slope(axes, rows[rows[by] == rows[by].iloc[0]], x, y, slopes[title])
            axes.set(xlabel=across if isinstance(across, str) else across[title], title=title)
            _scales(axes, sorted(rows[x].astype(float).unique().tolist()), log_x, log_y)
        grid[0].set_ylabel(label)
        _legend(grid.tolist())
    return figure


def _legend(grid: Sequence[Axes]) -> None:
    """Put one legend to the right of all panels, with each entry once."""
    handles = {
        n: h for axes in grid for h, n in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    grid[-1].legend(
        list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )


def _line(
    axes: Axes,
    rows: pd.DataFrame,
    name: str,
    number: int,
    x: str,
    y: str,
    middle: str,
    *,
    loose: bool,
) -> None:
    if not len(rows):
        return
    through, colour = rows.groupby(x)[y].agg(middle), COLOURS[number % len(COLOURS)]
    axes.plot(
        through.index,
        through,
        "--" if loose else "-",
        color=colour,
        label=name,
        marker="" if loose else MARKERS[number % len(MARKERS)],
    )
    if not loose:
        axes.scatter(rows[x], rows[y], s=10, color=colour, alpha=0.5, lw=0)


def _slope(axes: Axes, rows: pd.DataFrame, x: str, y: str, slope: float) -> None:
    places = np.array(sorted(set(rows[x])), dtype=float)
    start = rows[rows[x] == places[0]][y].median()
    line = start * (places / places[0]) ** slope
    axes.plot(places, line, "--", color=INK, lw=1, label=f"theory, slope {slope:.2g}")


def _scales(axes: Axes, values: Sequence[float], log_x: bool, log_y: bool) -> None:
    if log_x and min(values) > 0:
        axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    step = -(-len(values) // 7)
    axes.set_xticks(values[::step], [f"{v:.3g}" if v < 1000 else f"{v:g}" for v in values[::step]])
    axes.xaxis.set_minor_locator(NullLocator())
