"""A table of errors as a figure: models as rows, settings as columns, and another source's
numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from prooflens.plot import AMOUNT, style

__all__ = ["error_table"]


def error_table(table: pd.DataFrame, *, unit: str = "mean square error") -> Figure:
    """Median errors with their range over seeds, coloured by order of magnitude.

    Args:
        table: Columns ``model``, ``setting``, ``seed``, ``error`` and ``paper``, the number printed
            elsewhere for the cell (NaN where there is none).
        unit: The unit of the error.
    """
    models = list(dict.fromkeys(table["model"]))
    settings = list(dict.fromkeys(table["setting"]))
    cells = table.groupby(["model", "setting"])
    middle = cells["error"].median().unstack().reindex(models)[settings].to_numpy(float)
    with style():
        figure = Figure(figsize=(1.55 * len(settings) + 2.4, 0.62 * len(models) + 1.3))
        axes = figure.subplots()
        shown = np.log10(middle)
        image = axes.imshow(shown, cmap=AMOUNT, aspect="auto")
        for (row, column), value in np.ndenumerate(shown):
            if np.isfinite(value):
                group = cells.get_group((models[row], settings[column]))
                light = value > np.nanmin(shown) + 0.6 * np.ptp(shown[np.isfinite(shown)])
                axes.text(
                    column,
                    row,
                    _cell(group),
                    ha="center",
                    va="center",
                    size=7,
                    color="black" if light else "white",
                )
        axes.set_xticks(range(len(settings)), [s.replace(", ", "\n") for s in settings])
        axes.set_yticks(range(len(models)), models)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label=f"log₁₀ of the {unit}", pad=0.02)
    return figure


def _cell(group: pd.DataFrame) -> str:
    error, paper = group["error"], group["paper"].iloc[0]
    lines = [f"{error.median():.1e}"]
    if len(error) > 1:
        lines.append(f"{error.min():.0e} … {error.max():.0e}")
    if np.isfinite(paper):
        lines.append(f"paper {paper:.1e}")
    return "\n".join(lines)
