"""Error against the width of the head, with the rank and the theory's slope beside it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from interp.figures.style import INK, MUTED, PALETTE, size, style

__all__ = ["error_by_width"]


def error_by_width(
    table: pd.DataFrame,
    *,
    ranks: Mapping[str, int] | None = None,
    slopes: Mapping[str, float] | None = None,
    unit: str = "mean square error",
    across: str = "width of the head, m_h",
) -> Figure:
    """One panel a target: every seed a point, their median a line.

    Args:
        table: Columns ``target``, ``model``, ``m_h``, ``seed``, ``error``.
        ranks: Target → rank; drawn as a vertical line.
        slopes: Target → the theory's slope in double logarithmic scale; drawn through the median of
            the target's first model at its smallest width.
        unit: Of the error.
        across: What the widths are of.
    """
    targets = list(dict.fromkeys(table["target"]))
    models = list(dict.fromkeys(table["model"]))
    colours = dict(zip(models, PALETTE.values(), strict=False))
    with style():
        figure = Figure(figsize=size(1.15, len(targets) + 0.3))
        grid = figure.subplots(1, len(targets), sharey=True, squeeze=False)[0]
        for axes, target in zip(grid, targets, strict=True):
            rows = table[table["target"] == target]
            for model, group in rows.groupby("model", sort=False):
                _model(axes, group, str(model), colours[str(model)])
            if ranks and target in ranks:
                axes.axvline(ranks[target], color=MUTED, ls=":", lw=1, label="m_h = rank")
            if slopes and target in slopes:
                _slope(axes, rows, slopes[target])
            widths = sorted(set(rows["m_h"]))
            axes.set(title=target, xlabel=across, xscale="log", yscale="log")
            axes.set_xticks(widths)
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.legend(loc="best", fontsize=7)
        grid[0].set_ylabel(unit)
    return figure


def _model(axes: Axes, group: pd.DataFrame, name: str, colour: str) -> None:
    median = group.groupby("m_h")["error"].median()
    axes.plot(median.index, median.to_numpy(), "-", color=colour, label=name)
    if group["seed"].nunique() > 1:
        axes.plot(group["m_h"], group["error"], "o", color=colour, ms=3, alpha=0.6, mec="none")


def _slope(axes: Axes, rows: pd.DataFrame, slope: float) -> None:
    first = rows[rows["model"] == rows["model"].iloc[0]]
    widths = np.array(sorted(set(first["m_h"])), dtype=float)
    start = first[first["m_h"] == widths[0]]["error"].median()
    axes.plot(
        widths, start * (widths / widths[0]) ** slope, "--", color=INK, lw=1,
        label=f"theory, slope {slope:.2g}",
    )  # fmt: skip
