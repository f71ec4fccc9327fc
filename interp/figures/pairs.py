"""Which head reads which: heads as dots, layer 0 on top, and a line from each writer to its reader.

A line's width and colour give its score; lines are few by choice of the caller. A composition of
weights says that a reader could read what the writer wrote, not that anything flows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from interp.figures.style import INK, MUTED, PALETTE, style

__all__ = ["Pair", "pair_lines"]

HeadPlace = tuple[int, int]
Pair = tuple[HeadPlace, HeadPlace, float]
"""The writer's and the reader's (layer, head), and the score."""
_COLOURS = "viridis_r"
_BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}


def pair_lines(
    heads: Sequence[int],
    pairs: Sequence[Pair],
    label: str,
    *,
    named: Mapping[str, Sequence[HeadPlace]] | None = None,
    title: str = "",
) -> Figure:
    """Lines from writers to readers over the grid of all heads.

    Args:
        heads: Number of heads of each layer.
        pairs: What to draw, scores at least 0; the strongest is drawn last.
        label: What a score is, with its unit.
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
            _lines(axes, sorted(pairs, key=lambda pair: pair[2]), label)
        _named(axes, pairs, named or {})
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


def _lines(axes: Axes, pairs: Sequence[Pair], label: str) -> None:
    largest = max(score for _, _, score in pairs) or 1.0
    drawn = LineCollection(
        [[(w[1], w[0]), (r[1], r[0])] for w, r, _ in pairs],
        array=[score for _, _, score in pairs],
        linewidths=[0.5 + 2.0 * score / largest for _, _, score in pairs],
        cmap=mpl.colormaps[_COLOURS],
        norm=Normalize(0, largest),
        zorder=2,
    )
    axes.add_collection(drawn)
    axes.figure.colorbar(drawn, ax=axes, label=label, pad=0.02)


def _named(axes: Axes, pairs: Sequence[Pair], named: Mapping[str, Sequence[HeadPlace]]) -> None:
    colours = list(PALETTE.values())
    for i, (kind, places) in enumerate(named.items()):
        if places:
            xs, ys = [head for _, head in places], [layer for layer, _ in places]
            axes.scatter(xs, ys, s=36, color=colours[i], edgecolor="white", zorder=3, label=kind)
    if any(named.values()):
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.22), ncols=2, borderaxespad=0)
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
