"""Maps of numbers in [0, 1] with the numbers written in: rows × columns, one panel a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, style

__all__ = ["Panel", "draw_maps", "share_maps"]


@dataclass(frozen=True)
class Panel:
    """One map.

    Attributes:
        title: Above it.
        values: ``[row, column]``; shown clipped to [0, 1].
        rows: Names down the side.
    """

    title: str
    values: NDArray[np.floating]
    rows: Sequence[str]


def share_maps(
    panels: Sequence[Panel], columns: Sequence[str], *, label: str, across: str
) -> Figure:
    """Maps side by side with one colour bar.

    Args:
        panels: One a model.
        columns: Names of the columns, the same in every panel.
        label: What the numbers are, with their unit.
        across: What the columns are, with their unit.
    """
    tallest = max(len(panel.rows) for panel in panels)
    with style():
        figure = Figure(figsize=(3.6 * len(panels) + 0.8, 0.34 * tallest + 1.3))
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        image = draw_maps(list(grid), panels, columns, across=across)
        figure.colorbar(image, ax=list(grid), label=label, pad=0.02)
    return figure


def draw_maps(
    grid: Sequence[Axes], panels: Sequence[Panel], columns: Sequence[str], *, across: str
) -> AxesImage:
    """The maps on given axes, inside the style; the last one's image, for a colour bar."""
    for axes, panel in zip(grid, panels, strict=True):
        shown = np.clip(panel.values, 0, 1)
        image = axes.imshow(shown, cmap=AMOUNT, vmin=0, vmax=1, aspect="auto")
        axes.set(title=panel.title, xlabel=across)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(panel.rows)), panel.rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _write_cells(axes, shown)
    return image


def _write_cells(axes: Axes, values: NDArray[np.floating]) -> None:
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if value > 0.6 else "white"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, size=7)
