"""How many heads and bits it costs to select a lag, with lin and with log positions.

Left, the fewest heads found at each precision; a cross on the upper edge marks a lag that no number
of heads can select at that precision, a ring one for which none was found. Right, the significant
bits: below the line no number of heads suffices.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prooflens.plot import INK, MUTED, PALETTE, size, style

__all__ = ["phase_diagram"]

_COLOURS = {"lin": PALETTE["blue"], "log": PALETTE["red"]}
_NAMES = {"lin": "lin, $e^{-ps}$", "log": "log, $(1+s)^{-p}$"}
_LINES = {"float64": ("-", "o", 53), "float32": (":", "s", 24)}


def phase_diagram(table: pd.DataFrame, *, epsilon: float) -> Figure:
    """The phase diagram: heads and significant bits against the lag.

    Args:
        table: Columns ``positions``, ``lag``, ``precision``, ``heads``, ``status``,
            ``impossible_bits`` and ``possible_bits``, a row a position function, lag and precision.
        epsilon: The largest error allowed, named in the title.
    """
    with style():
        figure = Figure(figsize=size(1.45, 2.9))
        heads, bits = figure.subplots(1, 2)
        _heads(heads, table)
        _bits(bits, table)
        lags = sorted(set(table["lag"]))
        for axes in (heads, bits):
            axes.set(xlabel="lag T (positions)", xticks=lags)
            axes.set_xlim(min(lags) - 0.5, max(lags) + 0.5)
        figure.suptitle(f"What it costs to select one lag with error at most {epsilon:g}", size=10)
    return figure


def _heads(axes: Axes, table: pd.DataFrame) -> None:
    found = table["heads"].dropna()
    top = int(found.max() if len(found) else 1) + 2
    groups = list(table.groupby(["positions", "precision"], sort=False))
    for row, ((kind, precision), group) in enumerate(groups):
        line, marker, _ = _LINES[str(precision)]
        colour = _COLOURS[str(kind)]
        lag, count = group["lag"].to_numpy(), group["heads"].to_numpy(dtype=float, na_value=np.nan)
        label = f"{kind}, {precision}"
        axes.plot(lag, count, line, marker=marker, color=colour, label=label)
        for status, mark in (("impossible", "x"), ("not found", "o")):
            missing = lag[(group["status"] == status).to_numpy()]
            height = np.full(len(missing), top + row)
            axes.plot(missing, height, mark, color=colour, mfc="none", clip_on=False)
        beside = axes.get_yaxis_transform()
        axes.text(
            1.01, top + row, str(precision), transform=beside, color=colour, va="center", size=7
        )
    lags = np.array(sorted(set(table["lag"])))
    axes.plot(lags, lags + 1, "--", color=MUTED, lw=1, label="T + 1, exact arithmetic", zorder=0)
    axes.axhline(top - 1, color=MUTED, lw=0.6)
    axes.set(ylabel="fewest heads found, H", ylim=(0, top + len(groups)))
    axes.set_title("heads (× impossible, ○ none found)")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick < top - 0.5])
    axes.legend(loc="lower right", fontsize=7, labelspacing=0.25)


def _bits(axes: Axes, table: pd.DataFrame) -> None:
    highest = 0.0
    for kind, group in table.drop_duplicates(["positions", "lag"]).groupby("positions"):
        colour, lag = _COLOURS[str(kind)], group["lag"].to_numpy()
        low = group["impossible_bits"].to_numpy(dtype=float)
        high = group["possible_bits"].to_numpy(dtype=float, na_value=np.nan)
        axes.fill_between(lag, 0, low, color=colour, alpha=0.13, lw=0)
        axes.fill_between(lag, low, high, color=colour, alpha=0.45, lw=0)
        axes.plot(lag, high, "-o", color=colour, label=_NAMES[str(kind)])
        highest = max(highest, np.nanmax([low, high]))
    for name, (_, _, bits) in _LINES.items():
        axes.axhline(bits, color=INK, lw=0.8, ls="--")
        axes.text(1.01, bits, name, transform=axes.get_yaxis_transform(), va="center", size=7)
    axes.set(ylabel="significant bits", ylim=(0, 1.12 * max(highest, 53)))
    axes.set_title("precision (light shade: impossible)")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, 0.88))
