"""Heat maps with the numbers written in, one panel per model.

Colours run from 0 to 1. A number beyond is written as it is and has the colour of the nearer end,
which the colour bar shows by a pointed end. What was not measured (NaN) is blank, with a dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, MUTED, style

__all__ = ["Panel", "draw_maps", "share_maps"]

_UNMEASURED = "–"
_BRIGHT = 0.6
"""Cells with a value above this are light, so that their number is written dark."""
_SEEN = 0.005
"""A number must lie this far outside 0 … 1 to count as beyond, since two decimals are shown."""


@dataclass(frozen=True)
class Panel:
    """One map of the figure: a matrix of shares with the names of its rows.

    Attributes:
        title: The title above the map.
        values: The numbers, ``[row, column]``; NaN where nothing was measured.
        rows: The names of the rows.
    """

    title: str
    values: NDArray[np.floating]
    rows: Sequence[str]


def share_maps(
    panels: Sequence[Panel],
    columns: Sequence[str],
    *,
    label: str,
    across: str,
    narrow: bool = False,
) -> Figure:
    """Heat maps with one colour bar, side by side or, for a narrow screen, below one another.

    Args:
        panels: The maps, one per model.
        columns: Names of the columns, the same in every panel.
        label: What the numbers are, with their unit.
        across: What the columns are, with their unit.
        narrow: Whether the maps stand below one another.
    """
    tallest = max(len(panel.rows) for panel in panels)
    down, beside = (len(panels), 1) if narrow else (1, len(panels))
    with style():
        figure = Figure(figsize=(3.6 * beside + 0.8, (0.34 * tallest + 1.3) * down))
        grid = list(figure.subplots(down, beside, squeeze=False).flat)
        image = draw_maps(list(grid), panels, columns, across=across)
        figure.colorbar(image, ax=list(grid), label=label, pad=0.02, extend=_beyond(panels))
    return figure


def draw_maps(
    grid: Sequence[Axes], panels: Sequence[Panel], columns: Sequence[str], *, across: str
) -> AxesImage:
    """Draw maps on given axes, inside the style; return the last image, for a colour bar."""
    for axes, panel in zip(grid, panels, strict=True):
        image = axes.imshow(panel.values, cmap=AMOUNT, vmin=0, vmax=1, aspect="auto")
        axes.set(title=panel.title, xlabel=across)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(panel.rows)), panel.rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _write_cells(axes, panel.values)
    return image


def _beyond(panels: Sequence[Panel]) -> str:
    """Which ends of the colour bar are pointed, because numbers lie beyond them."""
    values = np.concatenate([panel.values.ravel() for panel in panels])
    below, above = bool((values < -_SEEN).any()), bool((values > 1 + _SEEN).any())
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get(
        (below, above), "neither"
    )


def _write_cells(axes: Axes, values: NDArray[np.floating]) -> None:
    for (row, column), value in np.ndenumerate(values):
        missing = bool(np.isnan(value))
        colour = MUTED if missing else "black" if value > _BRIGHT else "white"
        text = _UNMEASURED if missing else _number(float(value))
        axes.text(column, row, text, ha="center", va="center", color=colour, size=7)


def _number(value: float) -> str:
    """The number with two decimals, and no minus sign on what rounds to zero."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text
