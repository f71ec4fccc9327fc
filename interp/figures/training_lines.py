"""Numbers of heads over training: a thin line a head, the heads that are told of in colour.

What chance gives is a grey band behind the lines, so that a line is read against it and not against
the axis alone. Checkpoints stand at equal distances in the order in which they were given, since
their names need not say how many steps lie between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.figures.style import MUTED, PALETTE, size, style

__all__ = ["HeadLines", "heads_over_training"]

_COLOURS = [PALETTE[name] for name in ("blue", "orange", "green", "red", "purple")]
_MARKERS = ("o", "s", "^", "D", "v")
_OTHERS = "#BBBBBB"
_CROWDED = 6  # names of checkpoints that fit side by side


@dataclass(frozen=True)
class HeadLines:
    """One panel of the figure.

    Attributes:
        title: The title above it.
        label: What is shown, with its unit.
        heads: The lines' names.
        values: ``[head, checkpoint]``; what is not known is NaN.
        low, high: The band of what chance gives, ``[checkpoint]``.
        told: The heads drawn in colour, five at most.
    """

    title: str
    label: str
    heads: Sequence[str]
    values: Float[np.ndarray, "head checkpoint"]
    low: Float[np.ndarray, " checkpoint"]
    high: Float[np.ndarray, " checkpoint"]
    told: Sequence[str] = field(default_factory=tuple)


def heads_over_training(
    panels: Sequence[HeadLines], checkpoints: Sequence[str], *, columns: int = 3
) -> Figure:
    """A panel a number, the checkpoints from left to right.

    Args:
        panels: What is drawn.
        checkpoints: Their names, in the order of training.
        columns: How many panels stand beside one another.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with style():
        figure = Figure(figsize=size(1.25 * rows, 1.2 * columns))
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _lines(axes, panel, checkpoints)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
    return figure


def _lines(axes: Axes, panel: HeadLines, checkpoints: Sequence[str]) -> None:
    places = np.arange(len(checkpoints))
    axes.fill_between(places, panel.low, panel.high, color="#E6E6E6", lw=0, label="random weights")
    for name, values in zip(panel.heads, panel.values, strict=True):
        if name not in panel.told:
            axes.plot(places, values, color=_OTHERS, lw=0.8, zorder=1)
    for i, name in enumerate(panel.told):
        values = panel.values[list(panel.heads).index(name)]
        axes.plot(places, values, color=_COLOURS[i], marker=_MARKERS[i], label=name, zorder=2)
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
