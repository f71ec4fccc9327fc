"""What two ways of computing the same thing cost, against the size of the problem."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prooflens.plot import PALETTE, size, style

__all__ = ["gating_costs_figure"]

_WAYS = {
    "gated": ("one group a candidate, gated by the FFN (1 layer)", "orange", "o"),
    "shifted": ("one group, shifted by the location (2 layers)", "blue", "s"),
}
_MEASURES = {"heads": "heads", "neurons": "FFN neurons", "weights": "weights that are not 0"}


def gating_costs_figure(table: pd.DataFrame) -> Figure:
    """Heads, neurons and weights against the number of candidate lags.

    Args:
        table: Columns ``candidates``, ``way`` (``gated`` or ``shifted``), ``heads``, ``neurons``,
            ``weights``.
    """
    with style():
        figure = Figure(figsize=size(1.2, len(_MEASURES)))
        grid = figure.subplots(1, len(_MEASURES))
        for axes, (column, name) in zip(grid, _MEASURES.items(), strict=True):
            for way, (legend, colour, marker) in _WAYS.items():
                rows = table[table["way"] == way].sort_values("candidates")
                axes.plot(
                    rows["candidates"],
                    rows[column],
                    marker=marker,
                    color=PALETTE[colour],
                    label=legend,
                )
            axes.set(xlabel="candidate lags A (locations 1 … A)", ylabel=name)
            axes.set_ylim(bottom=0)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
