"""Diagonals of weight circuits: crops of the strongest, maps over heads, scores against a null.

A crop shows a corner of W_Q W_Kᵀ or W_V W_O itself, on a scale set by its off-diagonal entries and
symmetric about zero: a diagonal that is there is seen, one that is not is not. A map shows one
number of every head. A histogram puts the heads beside what random directions would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, INK, MUTED, PALETTE, SIGNED, size, style

__all__ = ["circuit_crops", "head_maps", "null_histograms"]

Array = NDArray[Any]

_SHOWN = 0.995
_OFF = "entry / RMS off the diagonal"
_PAGE, _WIDE_MAP, _NARROW_MAP = 14.0, 9.0, 5.0  # inches
_NAME = 0.28  # inches that a head's name takes


def circuit_crops(
    crops: Sequence[Array], titles: Sequence[str], *, columns: int = 4, title: str | None = None
) -> Figure:
    """Heat maps of the corners of several circuits, one panel each, on one scale.

    Circuits differ in size by orders of magnitude: what is shown of each is its entries over the
    root mean square of those off its diagonal, so that a diagonal is as strong as it stands out.

    Args:
        crops: matrices [size, size], or any shape, of equal meaning of rows and columns.
        titles: The title of each crop.
        columns: How many panels a row of the figure has.
        title: The title above all panels.
    """
    columns = max(1, min(columns, len(crops)))
    rows = max(1, math.ceil(len(crops) / columns))
    shown = [np.asarray(crop, dtype=float) / _size_off_diagonal(crop) for crop in crops]
    limit = max(map(_largest_off_diagonal, shown), default=1.0)
    with style():
        figure = Figure(figsize=(2.3 * columns + 0.8, 2.3 * rows + (0.7 if title else 0.4)))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(crops) :]:
            axes.set_visible(False)
        for axes, crop, name in zip(grid.flat, shown, titles, strict=False):
            image = axes.imshow(crop, cmap=SIGNED, vmin=-limit, vmax=limit)
            axes.set_title(name)
            axes.set_xticks([0, crop.shape[1] - 1])
            axes.set_yticks([0, crop.shape[0] - 1])
        if len(crops):
            long: Any = {"aspect": 22 * rows, "fraction": 0.15 / columns, "pad": 0.02}
            bar = figure.colorbar(image, ax=grid, label=_OFF, extend="both", **long)
            bar.outline.set_visible(False)
        figure.supxlabel("residual coordinate (right factor)", fontsize=9)
        figure.supylabel("residual coordinate (left factor)", fontsize=9)
        if title:
            figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure


def _size_off_diagonal(crop: Array) -> float:
    """The root mean square off the diagonal; where that is 0, of all; where that is 0, 1."""
    values = np.asarray(crop, dtype=float)
    sizes = [float(np.sqrt(np.mean(some**2))) for some in (_off(values), values) if some.size]
    return next((size for size in sizes if size > 0), 1.0)


def _largest_off_diagonal(crop: Array) -> float:
    """Half more than nearly all entries off the diagonal reach; where they are 0, the largest."""
    off = np.abs(_off(crop))
    limit = 1.5 * float(np.quantile(off, _SHOWN)) if off.size else 0.0
    return limit or float(np.abs(crop).max(initial=0.0)) or 1.0


def _off(crop: Array) -> Array:
    return crop[~np.eye(*crop.shape, dtype=np.bool_)]


def head_maps(
    values: Sequence[Array],
    labels: Sequence[str],
    *,
    titles: Sequence[str],
    strongest: int = 0,
    columns: int | None = None,
) -> Figure:
    """Heat maps of one number per head, layers downwards and heads across, several side by side.

    Maps with the same label have one colour scale and one bar. What is not a number is marked by a
    dash, what is infinite by ∞; a map with nothing to show says so.

    Args:
        values: ``[layer, head]`` each; NaN where a layer has no such head, or nothing was measured.
        labels: The label of each map: what is shown, with its unit.
        titles: The titles above the maps.
        strongest: How many of the largest |values| to name on each map.
        columns: How many maps stand side by side, 1 for a narrow screen; by default as many as a
            page is wide, and of a hundred heads a layer still one.
    """
    maps = [np.asarray(found, dtype=float) for found in values]
    width = max(2.5, 0.3 * maps[0].shape[1] + 0.6)
    width = min(width, _NARROW_MAP if columns == 1 else _WIDE_MAP)
    columns = columns or max(1, min(len(maps), int(_PAGE / width)))
    rows = -(-len(maps) // columns)
    height = max(2.0, 0.26 * maps[0].shape[0] + 1.1)
    cell = (width - 0.6) / max(1, maps[0].shape[1])
    bars = len(set(labels))
    with style():
        figure = Figure(figsize=(width * columns + 0.9 * bars, height * rows))
        drawn: dict[str, tuple[AxesImage, list[Axes]]] = {}
        for i, (found, label, title) in enumerate(zip(maps, labels, titles, strict=True)):
            axes = figure.add_subplot(rows, columns, i + 1)
            alike = [other for other, same in zip(maps, labels, strict=True) if same == label]
            image = _map(axes, found, _scale(alike), title)
            _name_strongest(axes, found, _scale(alike), strongest, beside=cell < _NAME)
            drawn.setdefault(label, (image, []))[1].append(axes)
        for label, (image, beside) in drawn.items():
            figure.colorbar(image, ax=beside, label=label, pad=0.02, aspect=20 * rows)
    return figure


def _scale(maps: Sequence[Array]) -> tuple[bool, float]:
    """Whether any finite value is below 0, and the largest size of one."""
    every = np.concatenate([values.ravel() for values in maps])
    finite = every[np.isfinite(every)]
    return bool((finite < 0).any()), float(np.abs(finite).max(initial=0.0)) or 1.0


def _map(axes: Axes, values: Array, scale: tuple[bool, float], title: str) -> AxesImage:
    signed, limit = scale
    colours, low = (SIGNED, -limit) if signed else (AMOUNT, 0.0)
    finite = np.ma.masked_invalid(values)
    image = axes.imshow(finite, cmap=colours, vmin=low, vmax=limit, aspect="auto")
    _mark_gaps(axes, values)
    axes.set(xlabel="head", ylabel="layer", title=title)
    axes.set_xticks(_ticks(values.shape[1]))
    axes.set_yticks(_ticks(values.shape[0]))
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _name_strongest(
    axes: Axes, values: Array, scale: tuple[bool, float], count: int, *, beside: bool
) -> None:
    """Names on the cells of the largest |values|, or on light ground where they are wider."""
    signed, limit = scale
    ground = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85}
    sizes = np.where(np.isfinite(values), np.abs(values), -1.0)
    order = np.argsort(-sizes.ravel(), kind="stable")[: min(count, int((sizes >= 0).sum()))]
    for layer, head in zip(*np.unravel_index(order, values.shape), strict=True):
        shade = abs(values[layer, head]) / limit
        light = (shade > 0.6 if signed else shade < 0.6) and not beside
        axes.text(
            float(head),
            float(layer),
            f"L{layer}H{head}",
            fontsize=6,
            ha="center",
            va="center",
            color="white" if light else INK,
            bbox=ground if beside else None,
        )


def _mark_gaps(axes: Axes, values: Array) -> None:
    """A dash where there is no number, ∞ where it is infinite; words where there is none at all."""
    if not np.isfinite(values).any():
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=MUTED)
        return
    for layer, head in np.argwhere(~np.isfinite(values)):
        text = {np.inf: "∞", -np.inf: "−∞"}.get(float(values[layer, head]), "–")
        axes.text(head, layer, text, ha="center", va="center", color=MUTED, fontsize=7)


def _ticks(n: int) -> list[int]:
    return list(range(0, n, max(1, math.ceil(n / 16))))


def null_histograms(
    scores: Sequence[tuple[Array, Array | float, Array | float]],
    label: str,
    *,
    titles: Sequence[str],
    columns: int | None = None,
) -> Figure:
    """Histograms of all heads' scores beside the range that the null allows, one panel each.

    Args:
        scores: (scores ``[head]``, null means, null standard deviations), of each head or one for
            all; the range from the lowest to the highest head's three deviations is shaded.
        label: What is scored, with its unit.
        titles: The titles above the panels.
        columns: How many panels stand side by side; all of them by default.
    """
    columns = columns or len(scores)
    rows = -(-len(scores) // columns)
    with style():
        figure = Figure(figsize=size(rows, 1.3 * columns))
        for i, (triple, title) in enumerate(zip(scores, titles, strict=True)):
            axes = figure.add_subplot(rows, columns, i + 1)
            _histogram(axes, *(np.asarray(part, dtype=float) for part in triple))
            axes.set(xlabel=label, ylabel="heads", title=title)
    return figure


def _histogram(axes: Axes, scores: Array, mean: Array, std: Array) -> None:
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=MUTED)
        return
    low, high = float(np.nanmin(mean - 3 * std)), float(np.nanmax(mean + 3 * std))
    lost = scores.size - finite.size
    axes.hist(finite, bins=_bins(finite), color=PALETTE["blue"], label=_counted(finite.size, lost))
    axes.axvspan(low, high, color=PALETTE["orange"], alpha=0.5, lw=0, zorder=0, label="null ± 3 sd")
    axes.locator_params(axis="x", nbins=5)
    axes.axvline(float(np.nanmean(mean)), color=MUTED, lw=0.8)
    axes.legend(loc="best")


def _counted(shown: int, lost: int) -> str:
    return f"{shown} heads" + (f", {lost} without a finite number" if lost else "")


def _bins(scores: Array) -> list[float]:
    """The edges of forty histogram bars; for scores that do not differ, an interval of visible
    width."""
    low, high = float(scores.min(initial=np.inf)), float(scores.max(initial=-np.inf))
    least = 1e-6 * max(abs(low), abs(high), 1e-6)
    if high - low < least:
        low, high = low - least, high + least
    edges: list[float] = np.linspace(low, high, 41).tolist()
    return edges
