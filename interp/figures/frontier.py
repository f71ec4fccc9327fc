"""Depth frontier: success by blocks and layers, a panel per range of lengths, every seed shown.

Each cell is split into as many strips as there are seeds, best first. The line is the theory's:
above it (depth at least k − 2) a solution exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from interp.figures.style import AMOUNT, INK, PALETTE, style

__all__ = ["depth_frontier"]


def depth_frontier(table: pd.DataFrame, bins: Sequence[str], *, label: str) -> Figure:
    """Share of strings right for every k, depth and seed.

    Args:
        table: Columns ``k``, ``depth``, ``seed``, ``bin``, ``exact_match``.
        bins: Panels, in order.
        label: Of the colour bar, with its unit.
    """
    blocks, depths = sorted(set(table["k"])), sorted(set(table["depth"]))
    with style():
        wide, high = 0.72 * len(blocks) + 0.5, 0.5 * len(depths) + 1.3
        figure = Figure(figsize=(wide * len(bins) + 0.9, high))
        panels = figure.subplots(1, len(bins), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, bins, strict=True):
            image = _panel(axes, table[table["bin"] == name], blocks, depths)
            axes.set_title(name)
            axes.set_xlabel("blocks k")
        panels[0].set_ylabel("attention layers")
        figure.colorbar(image, ax=list(panels), label=label, pad=0.02)
    return figure


def _panel(
    axes: Axes, table: pd.DataFrame, blocks: Sequence[int], depths: Sequence[int]
) -> AxesImage:
    seeds = int(table.groupby(["k", "depth"]).size().max())
    shown = np.full((len(depths), len(blocks) * seeds), np.nan)
    for (k, depth), group in table.groupby(["k", "depth"]):
        best_first = np.sort(group["exact_match"].to_numpy(dtype=float))[::-1]
        row, column = depths.index(cast("int", depth)), blocks.index(cast("int", k))
        shown[row, column * seeds : column * seeds + len(best_first)] = best_first
        middle = float(np.median(best_first))
        colour = "black" if middle > 0.6 else "white"
        axes.text(column, row, f"{middle:.2f}", ha="center", va="center", color=colour, size=7)
    reach = (-0.5, len(blocks) - 0.5, -0.5, len(depths) - 0.5)
    image = axes.imshow(
        shown, cmap=AMOUNT, vmin=0, vmax=1, extent=reach, origin="lower", aspect="auto"
    )
    axes.set_xticks(range(len(blocks)), [str(k) for k in blocks])
    axes.set_yticks(range(len(depths)), [str(d) for d in depths])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for edge in np.arange(len(blocks) + 1) - 0.5:
        axes.axvline(edge, color="white", lw=1.5)
    for edge in np.arange(len(depths) + 1) - 0.5:
        axes.axhline(edge, color="white", lw=1.5)
    _theory(axes, blocks, depths)
    return image


def _theory(axes: Axes, blocks: Sequence[int], depths: Sequence[int]) -> None:
    """The steps below which the theory has no solution: depth = k − 2 lies just above."""
    places, heights = [], []
    for column, k in enumerate(blocks):
        height = float(np.clip(sum(depth < k - 2 for depth in depths), 0, len(depths))) - 0.5
        places += [column - 0.5, column + 0.5]
        heights += [height, height]
    axes.plot(places, heights, color=INK, lw=4.5, clip_on=False)
    axes.plot(places, heights, color=PALETTE["orange"], lw=2.5, clip_on=False)
