"""Shares of seeds over settings: a map over two options, and strips over one option each.

A cell of the map has the share as its colour and the counts written in, as ``found/models``. A
strip shows two dots a setting: open, the share that solves the task; full, the share that works as
the proof does, with its exact 95 % interval. Where they lie apart the task is solved otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from scipy.stats import binomtest

from prooflens.plot import AMOUNT, MUTED, PALETTE, style

__all__ = ["ShareMap", "Strip", "shares_figure"]

Counts = tuple[int, int, int]
"""Models, those that solve the task, those that work as the proof does."""

_BRIGHT = 0.6
"""Share from which on a cell's colour is light, so that the counts in it are written in black."""
_A_ROW = 4
_LONG = 7
"""Number of characters up to which labels are written horizontally; if one is longer, all are
turned."""


@dataclass(frozen=True)
class ShareMap:
    """The data of a map over two options.

    Attributes:
        across, down: The option that varies from left to right, and the one from top to bottom.
        columns, rows: Their values, as they are shown.
        counts: The counts of each cell, ``[row][column]``.
    """

    across: str
    columns: Sequence[str]
    down: str
    rows: Sequence[str]
    counts: Sequence[Sequence[Counts]]


@dataclass(frozen=True)
class Strip:
    """The data of a strip, in which one option varies.

    Attributes:
        across: The option.
        columns: Its values, as they are shown.
        counts: The counts for each value.
        title: What else differs from the map; empty for nothing.
    """

    across: str
    columns: Sequence[str]
    counts: Sequence[Counts]
    title: str = ""


def shares_figure(grid: ShareMap, strips: Sequence[Strip]) -> Figure:
    """Draw the map twice, with the share that solves the task and the share that works as the proof
    does, and the strips below."""
    lines = -(-len(strips) // _A_ROW)
    heights = [0.42 * len(grid.rows) + 1.2, 2.3 * lines + 0.3][: 1 + bool(lines)]
    with style():
        figure = Figure(figsize=(9.6, sum(heights)))
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_maps(parts[0], grid)
        for part in parts[1:]:
            _draw_strips(part, strips, lines)
    return figure


def _draw_maps(part: SubFigure, grid: ShareMap) -> None:
    left, right = part.subplots(1, 2, sharey=True)
    _map(left, grid, 1, "solve the task")
    image = _map(right, grid, 2, "work as the proof does")
    left.set_ylabel(grid.down)
    part.colorbar(image, ax=[left, right], label="share of seeds", pad=0.02)


def _map(axes: Axes, grid: ShareMap, which: int, title: str) -> AxesImage:
    counts = np.array(grid.counts)
    shares = counts[..., which] / counts[..., 0]
    image = axes.imshow(shares, cmap=AMOUNT, vmin=0, vmax=1, aspect="auto")
    axes.set(title=title, xlabel=grid.across)
    axes.set_xticks(range(len(grid.columns)), grid.columns)
    axes.set_yticks(range(len(grid.rows)), grid.rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), share in np.ndenumerate(shares):
        colour = "black" if share > _BRIGHT else "white"
        text = f"{counts[row, column, which]}/{counts[row, column, 0]}"
        axes.text(column, row, text, ha="center", va="center", color=colour, size=8)
    return image


def _draw_strips(part: SubFigure, strips: Sequence[Strip], lines: int) -> None:
    panels = part.subplots(lines, _A_ROW, squeeze=False, sharey=True)
    for axes in panels.flat[len(strips) :]:
        axes.set_visible(False)
    for axes, strip in zip(panels.flat, strips, strict=False):
        _strip(axes, strip)
    for axes in panels[:, 0]:
        axes.set_ylabel("share of seeds")
    handles, names = panels.flat[0].get_legend_handles_labels()
    part.legend(handles, names, loc="outside lower center", ncols=2)


def _strip(axes: Axes, strip: Strip) -> None:
    places = np.arange(len(strip.columns))
    models, solved, found = np.array(strip.counts).T
    intervals = np.array(
        [binomtest(f, n).proportion_ci(0.95) for n, f in zip(models, found, strict=True)]
    )
    axes.vlines(places, intervals[:, 0], intervals[:, 1], color=PALETTE["blue"], lw=1)
    axes.plot(places, solved / models, "o", ms=9, mfc="none", color=MUTED, label="solve the task")
    label = "work as the proof does, with its 95 % interval"
    axes.plot(places, found / models, "o", ms=4.5, color=PALETTE["blue"], label=label)
    long = max(map(len, strip.columns)) > _LONG
    axes.set_xticks(places, strip.columns, rotation=20 * long, ha="right" if long else "center")
    axes.set(xlabel=strip.across, ylim=(-0.06, 1.06), xlim=(-0.5, len(places) - 0.5))
    axes.set_title(strip.title, size=8)
