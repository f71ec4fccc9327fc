"""Figures of proved bounds: what each bound cost to prove, and what it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from interp.figures.style import INK, MUTED, PALETTE, size, style

__all__ = ["bound_parts_figure", "bounds_figure"]


def bounds_figure(table: pd.DataFrame, *, kind: str, measured: float, trivial: float) -> Figure:
    """Proved bounds against their cost: one point per strategy, multiplications on the horizontal
    axis.

    Args:
        table: Columns ``strategy``, ``multiplications``, ``bound`` and ``vacuous`` (true or false);
            bounds are finite.
        kind: ``error`` (lower is better, logarithmic) or ``accuracy`` (higher is better).
        measured: The value that was measured on inputs.
        trivial: The value that the best constant answer reaches.
    """
    with style():
        figure = Figure(figsize=size(1.4, 1.8))
        axes = figure.subplots()
        axes.axhline(measured, color=PALETTE["green"], lw=1, label=f"seen: {measured:.6g}")
        axes.axhline(trivial, color=MUTED, lw=1, ls="--", label=f"constant answer: {trivial:.4g}")
        row: Any
        for row in table.itertuples():
            face = "white" if row.vacuous else PALETTE["blue"]
            axes.plot(row.multiplications, row.bound, "o", color=PALETTE["blue"], mfc=face, ms=7)
            axes.annotate(
                str(row.strategy),
                (row.multiplications, row.bound),
                xytext=(7, -12),
                textcoords="offset points",
                color=INK,
                fontsize=8,
            )
        axes.set_xscale("log")
        axes.margins(x=0.25, y=0.15)
        low, high = np.log10(axes.get_xlim())
        axes.set_xlim(10 ** np.floor(low), 10 ** np.ceil(high))  # so that decades carry labels
        axes.xaxis.set_minor_formatter(NullFormatter())
        if kind == "error":
            axes.set_yscale("log")
        better = "lower" if kind == "error" else "higher"
        axes.set(
            xlabel="multiplications of the proof", ylabel=f"proved {kind} ({better} is better)"
        )
        axes.legend(loc="best")
    return figure


def bound_parts_figure(parts: pd.DataFrame, *, label: str) -> Figure:
    """The parts that add up to each strategy's bound, as one stacked bar per strategy.

    Args:
        parts: Index strategy, a column for each part; rows add up to the bound.
        label: What is added up, under the axis.
    """
    with style():
        figure = Figure(figsize=size(0.6 + 0.15 * len(parts), 1.8))
        axes = figure.subplots()
        start = pd.Series(0.0, index=parts.index)
        for (name, values), colour in zip(parts.items(), PALETTE.values(), strict=False):
            axes.barh(list(parts.index), values, left=start, color=colour, label=str(name))
            start = start + values
        axes.set(xlabel=label)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(5))
        figure.legend(loc="outside lower center", ncols=2)
    return figure
