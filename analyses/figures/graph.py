"""Attention drawn as a graph on points, or as matrices beside the attention that solves the
task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prooflens.plot import AMOUNT, MUTED, PALETTE, size, style

__all__ = ["AttentionPair", "PointGraph", "attention_graph", "attention_pairs"]

_FAINT = 0.05


@dataclass(frozen=True)
class PointGraph:
    """One input of a task on points, with the attention on it.

    Attributes:
        title: The title above the panel.
        points: The coordinates of the points, ``[pos, 2]``.
        group: ``[pos]``, which set each point belongs to, 0 or 1.
        attention: The attention weights, ``[query, key]``.
        target: ``[pos]``, the key that each query should attend to.
    """

    title: str
    points: NDArray[np.floating]
    group: NDArray[np.integer]
    attention: NDArray[np.floating]
    target: NDArray[np.integer]


@dataclass(frozen=True)
class AttentionPair:
    """Measured attention beside the attention that solves the task, both ``[query, key]``."""

    title: str
    target: NDArray[np.floating]
    attention: NDArray[np.floating]


def attention_graph(graphs: Sequence[PointGraph]) -> Figure:
    """Draw arrows from each point to the points that it attends to, as wide as the attention, over
    the edges to nearest neighbours in grey."""
    with style():
        figure = Figure(figsize=size(1.25, len(graphs) + 0.2))
        grid = figure.subplots(1, len(graphs), sharex=True, sharey=True, squeeze=False)[0]
        for axes, graph in zip(grid, graphs, strict=True):
            _edges(axes, graph)
            for value, name in enumerate(("blue", "orange")):
                chosen = graph.points[graph.group == value]
                label = f"set {value + 1}"
                axes.plot(*chosen.T, "o", color=PALETTE[name], ms=7, zorder=3, label=label)
            axes.set(title=graph.title, xlabel="first coordinate", aspect="equal")
        grid[0].set_ylabel("second coordinate")
        grid[0].plot([], [], color=MUTED, alpha=0.35, lw=6, label="nearest")
        grid[0].plot([], [], color=PALETTE["black"], lw=1.5, label="attention")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _edges(axes: Axes, graph: PointGraph) -> None:
    for query, point in enumerate(graph.points):
        other = graph.points[graph.target[query]]
        axes.plot(
            *zip(point, other, strict=True),
            color=MUTED,
            alpha=0.35,
            lw=6,
            zorder=1,
            solid_capstyle="round",
        )
        for key, weight in enumerate(graph.attention[query]):
            if weight > _FAINT and key != query:
                arrow = {
                    "arrowstyle": "-|>,head_width=0.18,head_length=0.35",
                    "color": PALETTE["black"],
                    "lw": 1.8 * float(weight),
                    "alpha": min(1.0, 0.25 + float(weight)),
                    "shrinkA": 4,
                    "shrinkB": 4,
                }
                axes.annotate("", graph.points[key], point, arrowprops=arrow, zorder=2)


def attention_pairs(pairs: Sequence[AttentionPair]) -> Figure:
    """Draw, for one input of each task, the attention weights that solve it beside the model's
    attention."""
    with style():
        figure = Figure(figsize=size(1.9, len(pairs) * 0.9 + 0.3))
        grid = figure.subplots(2, len(pairs), squeeze=False)
        for column, pair in enumerate(pairs):
            top = float(max(pair.target.max(), pair.attention.max()))
            for row, (name, values) in enumerate(
                (("target", pair.target), ("attention", pair.attention))
            ):
                axes = grid[row, column]
                image = axes.imshow(values, cmap=AMOUNT, vmin=0, vmax=top)
                axes.set(title=f"{pair.title}\n{name}" if row == 0 else name)
                axes.set(ylabel="query position" if column == 0 else "")
                axes.set(xlabel="key position" if row == 1 else "")
                ticks = range(0, len(values), max(1, len(values) // 5))
                axes.set_xticks(ticks)
                axes.set_yticks(ticks)
            figure.colorbar(image, ax=list(grid[:, column]), shrink=0.7, label="weight")
    return figure
