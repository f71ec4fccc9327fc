"""Which lag the heads of a layer select together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from interp.figures.style import MUTED, PALETTE, size, style

__all__ = ["kernels_by_lag"]

_WIDTH = 0.36


def kernels_by_lag(
    kernels: Mapping[str, Mapping[str, NDArray[np.floating]]],
    lags: Mapping[str, int],
    *,
    longest: int,
) -> Figure:
    """The summed signed kernels of a layer's heads over lags: one panel per memory, one colour per
    model.

    Args:
        kernels: Model → memory → ``[lag]`` summed kernel; scaled to unit absolute weight here.
        lags: Memory → the lag it should select, shaded in its panel.
        longest: Largest lag drawn; the scaling counts all of them.
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
