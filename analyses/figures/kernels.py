"""Memory kernels with the sums of exponentials or powers fitted to them, and errors against
heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prooflens.plot import INK, MUTED, PALETTE, size, style

__all__ = ["KernelPanel", "errors_by_heads", "kernel_fits"]

_COLOURS = {"lin": PALETTE["blue"], "log": PALETTE["red"]}
_NAMES = {"lin": "lin, $e^{-ps}$", "log": "log, $(1+s)^{-p}$"}
_SERIES = ("blue", "orange", "green", "red", "purple", "black")
_MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class KernelPanel:
    """One panel of the figure: a memory kernel and the fits to it.

    Attributes:
        title: The title above the figure.
        values: The kernel ρ at lags 0, 1, …, ``[lag]``.
        fits: Legend → what a sum holds at the same lags, ``[lag]``; ``lin …`` and ``log …`` have
            their colours.
    """

    title: str
    values: Float[np.ndarray, " lag"]
    fits: Mapping[str, Float[np.ndarray, " lag"]]


def kernel_fits(panels: Sequence[KernelPanel]) -> Figure:
    """Draw each kernel with its fits above, and the error of each fit below."""
    with style():
        figure = Figure(figsize=size(1.55, len(panels)))
        heights = {"height_ratios": [2, 1]}
        grid = figure.subplots(2, len(panels), squeeze=False, sharex="col", gridspec_kw=heights)
        for (above, below), panel in zip(grid.T, panels, strict=True):
            lags = np.arange(len(panel.values))
            above.plot(lags, panel.values, color=INK, lw=3, alpha=0.3, label="kernel")
            below.axhline(0, color=MUTED, lw=0.8)
            for number, (name, held) in enumerate(panel.fits.items()):
                colour = _COLOURS.get(name[:3], PALETTE[_SERIES[number]])
                line = "-" if name.startswith("lin") else "--"
                above.plot(lags, held, line, color=colour, lw=1.2, label=name)
                below.plot(lags, held - panel.values, line, color=colour, lw=1.2)
            above.set_title(panel.title)
            above.legend(loc="upper right", fontsize=7)
            below.set(xlabel="lag s (positions)")
        grid[0, 0].set_ylabel("kernel ρ(s)")
        grid[1, 0].set_ylabel("fit − ρ")
    return figure


def errors_by_heads(table: pd.DataFrame, *, ylabel: str, title: str) -> Figure:
    """Error against the number of heads, a line a target, a panel a position function.

    Args:
        table: Columns ``target``, ``positions``, ``heads``, ``precision``, ``error``; the first
            precision is drawn with full lines, a second with thin ones.
        ylabel: What the error is, with its unit.
        title: The title above the panels.
    """
    kinds, targets = list(dict.fromkeys(table["positions"])), list(dict.fromkeys(table["target"]))
    precisions = list(dict.fromkeys(table["precision"]))
    with style():
        figure = Figure(figsize=size(1.25, len(kinds) + 0.35))
        grid = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for axes, kind in zip(grid, kinds, strict=True):
            for number, target in enumerate(targets):
                colour = PALETTE[_SERIES[number % len(_SERIES)]]
                for precision, line in zip(precisions, ("-", ":"), strict=False):
                    keys = ["positions", "target", "precision"]
                    same = (table[keys] == [kind, target, precision]).all(axis=1)
                    rows = table[same].sort_values("heads")
                    label = str(target) if precision == precisions[0] else None
                    marker = _MARKERS[number % len(_MARKERS)]
                    axes.plot(
                        rows["heads"],
                        rows["error"],
                        line,
                        marker=marker,
                        color=colour,
                        label=label,
                        lw=1.6 if line == "-" else 1.0,
                    )
            axes.set(yscale="log", xlabel="heads H", title=_NAMES.get(str(kind), str(kind)))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.axhline(1.0, color=MUTED, lw=0.8, ls="--")
        grid[0].set_ylabel(ylabel)
        lines = ", ".join(
            f"{'full' if i == 0 else 'dotted'}: {p}" for i, p in enumerate(precisions)
        )
        legend_title = (
            "lag T" if all(isinstance(t, int | np.integer) for t in targets) else "kernel"
        )
        grid[-1].legend(title=legend_title, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.suptitle(f"{title} ({lines})", size=10)
    return figure
