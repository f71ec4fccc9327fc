"""The depth frontier: success for each number of blocks and layers, with every seed shown.

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

from prooflens.plot import AMOUNT, INK, PALETTE, size, style

__all__ = ["depth_frontier", "shallower_at_best"]


def depth_frontier(table: pd.DataFrame, bins: Sequence[str], *, label: str) -> Figure:
    """Draw the share of strings that are answered right, for every k, depth and seed.

    Args:
        table: Columns ``k``, ``depth``, ``seed``, ``bin``, ``exact_match``.
        bins: The ranges of lengths, one panel each, in order.
        label: The label of the colour bar, with its unit.
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


def shallower_at_best(
    trained: pd.DataFrame, bounds: pd.DataFrame, programs: pd.DataFrame, *, label: str
) -> Figure:
    """Draw what models with too few layers reach, beside what any such model could, and beside
    models with enough layers.

    Args:
        trained: Columns ``k``, ``depth``, ``exact_match``: one row per model, one range of lengths.
        bounds: Columns ``k``, ``exact_match_at_most`` of any predictor of one layer.
        programs: Columns ``k``, ``exact_match`` of the best program found of depth k − 3.
        label: The axis label: what is shown, with its unit.
    """
    blocks = sorted({k for k in trained["k"] if k >= 4})
    lacking = trained["k"] - trained["depth"]
    dots = (
        ("trained, depth 1", trained[(trained["depth"] == 1) & (lacking > 3)], "sky", -0.3),
        ("trained, depth k − 3", trained[lacking == 3], "blue", -0.1),
        ("trained, depth k − 2", trained[lacking == 2], "orange", 0.3),
    )
    with style():
        figure = Figure(figsize=size(1.2, 1.9))
        axes = figure.subplots()
        for name, rows, colour, shift in dots:
            shown = rows[rows["k"].isin(blocks)]
            if shown.empty:
                continue
            axes.plot(
                _places(shown["k"], blocks, shift),
                shown["exact_match"],
                "o",
                ms=5,
                color=PALETTE[colour],
                mec="white",
                mew=0.5,
                label=name,
            )
        axes.plot(
            _places(programs["k"], blocks, 0.1),
            programs["exact_match"],
            "X",
            ms=7,
            color=PALETTE["green"],
            mec="white",
            mew=0.5,
            label="best program found, depth k − 3",
        )
        axes.plot(
            _places(bounds["k"], blocks, -0.2),
            bounds["exact_match_at_most"],
            "_",
            ms=16,
            mew=2,
            color=PALETTE["red"],
            label="bound on depth 1",
        )
        axes.set_xticks(range(len(blocks)), [str(k) for k in blocks])
        axes.set(
            xlabel="blocks k", ylabel=label, ylim=(-0.04, 1.04), xlim=(-0.5, len(blocks) - 0.5)
        )
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _places(values: pd.Series, blocks: Sequence[int], shift: float) -> list[float]:
    return [blocks.index(int(k)) + shift for k in values]


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
    """Draw the line of the theory: from depth k − 2 on a solution exists."""
    places, heights = [], []
    for column, k in enumerate(blocks):
        height = float(np.clip(sum(depth < k - 2 for depth in depths), 0, len(depths))) - 0.5
        places += [column - 0.5, column + 0.5]
        heights += [height, height]
    axes.plot(places, heights, color=INK, lw=4.5, clip_on=False)
    axes.plot(places, heights, color=PALETTE["orange"], lw=2.5, clip_on=False)
