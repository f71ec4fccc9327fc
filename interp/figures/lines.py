"""Figures with lines and points: what heads read and do, training, proved bounds.

*Which head reads which*: heads as dots, layer 0 on top, and a line from each writer to its reader.
A line's width and colour give its score; the caller chooses few lines. A composition of weights
says that a reader could read what the writer wrote, not that it does.

*Numbers of heads over training*: a thin line per head, with some heads highlighted in colour. A
grey band behind the lines is the range that chance gives. Checkpoints are equally spaced in the
order in which they were given, since their names need not say how many steps lie between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from interp.figures.style import INK, MUTED, PALETTE, size, style

_WIDTH = 0.36


def kernels_by_lag(
    kernels: Mapping[str, Mapping[str, NDArray[np.floating]]],
    lags: Mapping[str, int],
    *,
    longest: int,
) -> Figure:
    """Draw the summed signed kernels of a layer's heads over lags: one panel per memory, one colour
    per model.

    Args:
        kernels: Model → memory → ``[lag]`` summed kernel; it is scaled to unit absolute weight
            here.
        lags: Memory → the lag that it should select, shaded in its panel.
        longest: Largest lag drawn; the scaling uses all lags.
    """
    colours = [PALETTE[name] for name in ("blue", "orange", "green", "red")]
    with style():
        figure = Figure(figsize=size(1, len(lags) + 0.6))
        grid = figure.subplots(1, len(lags), sharey=True, squeeze=False)[0]
        for axes, (memory, lag) in zip(grid, lags.items(), strict=True):
            axes.axvspan(lag - 0.5, lag + 0.5, color=MUTED, alpha=0.15, label="the task's lag")
            for i, (model, by_memory) in enumerate(kernels.items()):
                kernel = by_memory[memory] / (np.abs(by_memory[memory]).sum() or 1.0)
                kernel = kernel[: longest + 1]
                place = np.arange(len(kernel)) + _WIDTH * (i - (len(kernels) - 1) / 2)
                axes.bar(place, kernel, _WIDTH, color=colours[i], label=model)
            axes.axhline(0, color=MUTED, linewidth=0.8)
            axes.set(title=f"memory {memory}", xlabel="lag (positions)", xticks=range(len(kernel)))
        grid[0].set_ylabel("summed kernel of the heads\n(share of absolute weight)")
        grid[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


HeadPlace = tuple[int, int]
Pair = tuple[HeadPlace, HeadPlace, float]
"""(layer, head) of the writing head, (layer, head) of the reading head, and the score of the
pair."""
_SHADES = "viridis_r"
_BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}


def pair_lines(
    heads: Sequence[int],
    pairs: Sequence[Pair],
    label: str,
    *,
    named: Mapping[str, Sequence[HeadPlace]] | None = None,
    title: str = "",
) -> Figure:
    """Draw lines from writers to readers over the grid of all heads.

    Args:
        heads: Number of heads of each layer.
        pairs: The pairs to draw, with scores of at least 0; the strongest is drawn last.
        label: The score's name, with its unit.
        named: Kind → heads that are marked in a colour of their own and listed in the legend.
        title: The title above the grid.
    """
    widest = max(heads, default=1)
    with style():
        size = (max(4.2, 0.36 * widest + 2.6), max(2.6, 0.42 * len(heads) + 1.3))
        figure = Figure(figsize=size)
        axes = figure.add_subplot()
        _grid(axes, heads)
        if pairs:
            _pair_lines(axes, sorted(pairs, key=lambda pair: pair[2]), label)
        _mark_heads(axes, pairs, named or {})
        axes.set(xlabel="head", ylabel="layer", title=title)
        axes.set_xticks(range(0, widest, max(1, widest // 16)))
        axes.set_yticks(range(len(heads)))
        axes.set_xlim(-0.7, widest - 0.3)
        axes.set_ylim(len(heads) - 0.4, -0.6)
    return figure


def _grid(axes: Axes, heads: Sequence[int]) -> None:
    places = [(head, layer) for layer, count in enumerate(heads) for head in range(count)]
    across, up = zip(*places, strict=True)
    axes.scatter(across, up, s=8, color=MUTED, alpha=0.5, lw=0, zorder=1)


def _pair_lines(axes: Axes, pairs: Sequence[Pair], label: str) -> None:
    largest = max(score for _, _, score in pairs) or 1.0
    drawn = LineCollection(
        [[(w[1], w[0]), (r[1], r[0])] for w, r, _ in pairs],
        array=[score for _, _, score in pairs],
        linewidths=[0.5 + 2.0 * score / largest for _, _, score in pairs],
        cmap=mpl.colormaps[_SHADES],
        norm=Normalize(0, largest),
        zorder=2,
    )
    axes.add_collection(drawn)
    axes.figure.colorbar(drawn, ax=axes, label=label, pad=0.02)


def _mark_heads(
    axes: Axes, pairs: Sequence[Pair], named: Mapping[str, Sequence[HeadPlace]]
) -> None:
    colours = list(PALETTE.values())
    for i, (kind, places) in enumerate(named.items()):
        if places:
            xs, ys = [head for _, head in places], [layer for layer, _ in places]
            axes.scatter(xs, ys, s=36, color=colours[i], edgecolor="white", zorder=3, label=kind)
    if any(named.values()):
        figure: Any = axes.figure
        below = -0.55 / figure.get_size_inches()[1]  # inches, as a share of the figure
        axes.legend(loc="upper left", bbox_to_anchor=(0, below), ncols=2, borderaxespad=0)
    shown = {place for pair in pairs for place in pair[:2]}
    for layer, head in sorted(shown | {p for places in named.values() for p in places}):
        axes.annotate(
            f"L{layer}H{head}",
            (head, layer),
            xytext=(0, 5),
            textcoords="offset points",
            fontsize=6,
            color=INK,
            ha="center",
            zorder=4,
            bbox=_BEHIND,
        )


_HEAD_COLOURS = [PALETTE[name] for name in ("blue", "orange", "green", "red", "purple")]
_HEAD_MARKERS = ("o", "s", "^", "D", "v")
_OTHERS = "#BBBBBB"
_CROWDED = 6  # names of checkpoints that fit side by side


@dataclass(frozen=True)
class HeadLines:
    """One panel of the figure.

    Attributes:
        title: The title above it.
        label: The quantity on the vertical axis, with its unit.
        heads: The lines' names.
        values: ``[head, checkpoint]``; unknown values are NaN.
        low, high: The band that chance gives, ``[checkpoint]``; None for no band.
        told: The heads drawn in colour, five at most.
    """

    title: str
    label: str
    heads: Sequence[str]
    values: Float[np.ndarray, "head checkpoint"]
    low: Float[np.ndarray, " checkpoint"] | None = None
    high: Float[np.ndarray, " checkpoint"] | None = None
    told: Sequence[str] = field(default_factory=tuple)


def heads_over_training(
    panels: Sequence[HeadLines], checkpoints: Sequence[str], *, columns: int = 3
) -> Figure:
    """Draw one panel per quantity, with the checkpoints from left to right.

    Args:
        panels: The panels.
        checkpoints: The checkpoints' names, in the order of training.
        columns: The number of panels side by side.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with style():
        figure = Figure(figsize=size(1.25 * rows, 1.2 * columns))
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _head_lines(axes, panel, checkpoints)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
    return figure


def _head_lines(axes: Axes, panel: HeadLines, checkpoints: Sequence[str]) -> None:
    places = np.arange(len(checkpoints))
    if panel.low is not None:
        band: Any = (panel.low, panel.high)
        axes.fill_between(places, *band, color="#E6E6E6", lw=0, label="random weights")
    else:
        axes.axhline(0, color=MUTED, lw=0.6, zorder=0)
        axes.set_xlim(-0.3, len(checkpoints) - 0.7)  # also where some have no number
    for name, values in zip(panel.heads, panel.values, strict=True):
        if name not in panel.told:
            axes.plot(places, values, color=_OTHERS, lw=0.8, zorder=1)
    for i, name in enumerate(panel.told):
        values = panel.values[list(panel.heads).index(name)]
        axes.plot(
            places, values, color=_HEAD_COLOURS[i], marker=_HEAD_MARKERS[i], label=name, zorder=2
        )
    axes.set_title(panel.title)
    axes.set_ylabel(panel.label)
    axes.set_xlabel("checkpoint, in the order given")
    crowded = len(checkpoints) > _CROWDED
    every = -(-len(checkpoints) // 24)
    shown = places[::every]
    axes.set_xticks(shown, [checkpoints[i] for i in shown])
    if crowded:
        for tick in axes.get_xticklabels():
            tick.set(rotation=60, ha="right", rotation_mode="anchor")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4)
    axes.grid(axis="y", color="#EEEEEE", lw=0.6, zorder=0)
    axes.tick_params(color=MUTED)


def bounds_figure(table: pd.DataFrame, *, kind: str, measured: float, trivial: float) -> Figure:
    """Draw proved bounds against their cost: one point per strategy, multiplications on the
    horizontal axis.

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
    """Draw the parts that add up to each strategy's bound, as one stacked bar per strategy.

    Args:
        parts: One row per strategy (the index) and one column per part; rows add up to the bound.
        label: The label of the axis: the quantity that is added up.
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


def gain_by_lines(lines: Sequence[float], gains: Sequence[float], least: float) -> Figure:
    """Draw the gain of the best program of each length.

    Args:
        lines: Numbers of lines.
        gains: The gain of the best program with at most that many lines, on rows that it was not
            fitted on.
        least: The gain from which a program counts as found.
    """
    with style():
        figure = Figure(figsize=size(1.1, 1.77))
        axes = figure.subplots()
        axes.plot(lines, np.clip(gains, 0.0, None), marker="o", label="best program")
        axes.axhline(least, color=MUTED, ls=":", lw=1, label="found", zorder=0)
        axes.set(xlabel="lines (at most)", ylabel="gain on rows not fitted")
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
