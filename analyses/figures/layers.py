"""Trained models measured layer by layer, beside the construction that solves the same task.

Above, maps of what linear probes read after every sublayer; below, one panel a measure: a dot for
each trained model, a diamond for the construction, a dashed line where the rule wants it to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prooflens.plot import MUTED, PALETTE, Panel, draw_maps, style

__all__ = ["layer_comparison"]

_SPREAD = 0.32  # of the dots of one layer, in layers


def layer_comparison(
    panels: Sequence[Panel],
    columns: Sequence[str],
    measures: pd.DataFrame,
    *,
    label: str,
    across: str,
    levels: Mapping[str, float],
) -> Figure:
    """Draw maps of probes, with panels of dots for other measures below them.

    Args:
        panels: The maps, one per model.
        columns: The names of the maps' columns.
        measures: Columns ``group`` (e.g. a language), ``layer``, ``model``, ``constructed``
            (Boolean), ``measure`` (what it is, with its unit) and ``value``, in [0, 1].
        label: What the maps show, with its unit.
        across: What the columns are.
        levels: Measure → the value at which its dashed line stands.
    """
    tallest = max(len(panel.rows) for panel in panels)
    names = list(dict.fromkeys(measures["measure"]))
    with style():
        high = 0.3 * tallest + 1.2
        figure = Figure(figsize=(max(4.2 * len(panels), 3.2 * len(names)), high + 3.0))
        parts: Any = figure.subfigures(2, 1, height_ratios=[high, 3.0])
        above, below = parts
        grid = above.subplots(1, len(panels), squeeze=False)[0]
        image = draw_maps(list(grid), panels, columns, across=across)
        above.colorbar(image, ax=list(grid), label=label, pad=0.02)
        strips = below.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(strips, names, strict=True):
            _dots(axes, measures[measures["measure"] == name], levels.get(name))
            axes.set(title=name, xlabel="layer, by language")
        handles, words = strips[0].get_legend_handles_labels()
        below.legend(handles, words, loc="outside lower center", ncols=3, handletextpad=0.3)
    return figure


def _dots(axes: Axes, rows: pd.DataFrame, level: float | None) -> None:
    places = list(dict.fromkeys(zip(rows["group"], rows["layer"], strict=True)))
    if level is not None:
        axes.axhline(level, color=MUTED, ls="--", lw=0.9, zorder=0, label="the rule's level")
    for constructed, marker, colour, name in (
        (False, "o", PALETTE["blue"], "trained"),
        (True, "D", PALETTE["orange"], "compiled"),
    ):
        drawn = rows[rows["constructed"] == constructed]
        across, values = [], []
        for at, place in enumerate(places):
            here = drawn[(drawn["group"] == place[0]) & (drawn["layer"] == place[1])]["value"]
            step = _SPREAD / max(len(here) - 1, 1)
            start = at - (0 if constructed or len(here) < 2 else _SPREAD / 2)
            across += [start + step * i for i in range(len(here))]
            values += here.tolist()
        axes.plot(
            across,
            values,
            marker,
            color=colour,
            label=name,
            ls="",
            mec="white",
            mew=0.5,
            ms=9 if constructed else 5,
            zorder=2 if constructed else 3,
        )
    ticks = [f"{layer}\n{group}" if layer == 1 else f"{layer}" for group, layer in places]
    axes.set_xticks(range(len(places)), ticks)
    axes.set(ylim=(-0.05, 1.05), xlim=(-0.6, len(places) - 0.4))
