"""Singular spectra of scores: their spread over inputs, and the spectrum that solves the task."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prooflens.plot import INK, PALETTE, size, style

__all__ = ["spectra_by_input", "spectra_by_width"]

_FLOOR = 1e-6
_SHOWN = 8
"""Number of singular values of an input that are drawn."""


def spectra_by_input(spectra: Mapping[str, NDArray[np.floating]]) -> Figure:
    """Draw violin plots of each singular value over inputs, one panel per model.

    Args:
        spectra: Model → its singular values, ``[input, value]``.
    """
    with style():
        figure = Figure(figsize=size(1.1, len(spectra) + 0.2))
        grid = figure.subplots(1, len(spectra), sharey=True, squeeze=False)[0]
        for axes, (name, values) in zip(grid, spectra.items(), strict=True):
            kept = values[:, :_SHOWN]
            places = np.arange(1, kept.shape[1] + 1)
            parts = axes.violinplot(list(kept.T), places, widths=0.8, showextrema=False)
            for body in parts["bodies"]:
                body.set(facecolor=PALETTE["blue"], alpha=0.5)
            axes.plot(places, kept.mean(0), "o", color=PALETTE["blue"], label="mean over inputs")
            axes.set(title=name, xlabel="index k of the singular value", xticks=places)
            axes.set_ylim(bottom=0)
        grid[0].set_ylabel("singular value of the centred scores\n(÷ length)")
        grid[-1].legend(loc="upper right")
    return figure


def spectra_by_width(
    spectra: Mapping[int, NDArray[np.floating]],
    *,
    reference: NDArray[np.floating] | None = None,
) -> Figure:
    """Draw the spectra of models with heads of growing width, with their range over seeds.

    Args:
        spectra: The head width m_h → singular values ``[seed, value]``.
        reference: The target's singular values.
    """
    with style():
        figure = Figure(figsize=size(1.25, 1.7))
        axes = figure.subplots()
        for (m_h, values), colour in zip(sorted(spectra.items()), PALETTE.values(), strict=False):
            places = np.arange(1, values.shape[1] + 1)
            middle = np.median(values, axis=0).clip(_FLOOR)
            axes.plot(places, middle, "-o", color=colour, label=f"m_h = {m_h}")
            low, high = values.min(0).clip(_FLOOR), values.max(0).clip(_FLOOR)
            axes.fill_between(places, low, high, color=colour, alpha=0.2, lw=0)
        if reference is not None:
            places = np.arange(1, len(reference) + 1)
            axes.plot(places, reference, "--", color=INK, lw=1.2, label="target, σ_k")
        longest = max(values.shape[1] for values in spectra.values())
        axes.set(xlabel="index k of the singular value", yscale="log")
        axes.set_ylabel("singular value in the input metric")
        axes.set_xticks(np.arange(1, longest + 1))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
