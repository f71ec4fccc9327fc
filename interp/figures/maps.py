"""Heat maps: tables of numbers, attention, rounds of a nested memory, diagonals of weights.

Colours run from 0 to 1. A number outside this range is written as it is and has the colour of the
nearer end, which the colour bar shows by a pointed end. What was not measured (NaN) is blank, with
a dash.

*The rounds of a nested memory*, layer by layer: one column per model. The upper panel shows how
well each latent can be read linearly at each place of the residual stream: with one round per layer
the map is a staircase. The lower panel shows the summed kernel of each layer's heads at each lag,
counted from the location of the round: a bar at 0 says that the layer fetches that memory. A
staircase in a trained model shows an order of rounds, not their mechanism.

*Diagonals of weight circuits*: crops of the strongest, maps over heads, scores against a null. A
crop shows a corner of W_Q W_Kᵀ or W_V W_O itself, on a scale that is symmetric about zero and set
by its off-diagonal entries, so that only a real diagonal is visible. A map shows one number of
every head. A histogram compares the heads with random directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, INK, MUTED, PALETTE, SIGNED, size, style

_UNMEASURED = "–"
_BRIGHT = 0.6
"""Value from which on a cell's colour is light, so that the number in it is written in black
instead of white."""
_SEEN = 0.005
"""How far outside 0 … 1 a value must lie for the colour bar to show that values go beyond it. Half
of 0.01, because numbers are shown with two decimals."""


@dataclass(frozen=True)
class Panel:
    """One heat map of the figure drawn by :func:`share_maps`.

    Attributes:
        title: The title above the map.
        values: The numbers, ``[row, column]``; NaN where nothing was measured. Colours run from 0
            to 1; a value outside has the colour of the nearer end.
        rows: The names of the rows. The names of the columns are an argument of the figure.
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
    """Draw heat maps with one colour bar, side by side or, for a narrow screen, below one another.

    Args:
        panels: The maps, one per model.
        columns: Names of the columns, the same in every panel.
        label: The label of the numbers, with their unit.
        across: The label of the columns, with their unit.
        narrow: Whether the maps are below one another.
    """
    tallest = max(len(panel.rows) for panel in panels)
    heights = [0.34 * (len(panel.rows) if narrow else tallest) + 1.3 for panel in panels]
    down, beside = (len(panels), 1) if narrow else (1, len(panels))
    high = sum(heights) if narrow else heights[0]
    with style():
        figure = Figure(figsize=(max(3.6, 0.5 * len(columns) + 1.2) * beside + 0.8, high))
        ratios = {"height_ratios": heights} if narrow else {}
        grid = list(figure.subplots(down, beside, squeeze=False, gridspec_kw=ratios).flat)
        image = draw_maps(list(grid), panels, columns, across=across)
        if not narrow:  # rows are as high in every map
            for axes in grid:
                axes.set_ylim(tallest - 0.5, -0.5)
        width: Any = {"fraction": 0.15 / beside, "aspect": max(20, 4 * high), "pad": 0.02}
        figure.colorbar(image, ax=list(grid), label=label, extend=_beyond(panels), **width)
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
    """Return which ends of the colour bar are pointed, because numbers are outside of its range."""
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
    """Return the number with two decimals, without a minus sign if it rounds to zero."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


_LABEL = "mean attention (share)"
_LEAST = 1e-12


def attention_maps(patterns: Mapping[str, NDArray[np.floating]], *, columns: int = 4) -> Figure:
    """Draw mean attention of each query position to each key position, heads side by side on one
    scale.

    Args:
        patterns: Name of the head → ``[query, key]``, shares (or, without a normaliser, a kernel).
        columns: The largest number of columns of the grid.
    """
    top = max(*(float(np.abs(pattern).max()) for pattern in patterns.values()), _LEAST)
    columns = min(columns, len(patterns))
    rows = -(-len(patterns) // columns)
    with style():
        figure = Figure(figsize=(1.9 * columns + 1.2, 2.1 * rows + 0.5))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(patterns) :]:
            axes.set_visible(False)
        for number, (axes, name) in enumerate(zip(grid.flat, patterns, strict=False)):
            image = axes.imshow(_past(patterns[name]), cmap=AMOUNT, vmin=0, vmax=top)
            axes.set_title(name)
            axes.locator_params(nbins=4, integer=True)
            if number % columns == 0:
                axes.set_ylabel("query (position)")
            if number + columns >= len(patterns):  # nothing stands below
                axes.set_xlabel("key (position)")
                axes.tick_params(labelbottom=True)
        figure.colorbar(image, ax=grid, label=_LABEL, pad=0.02)
    return figure


def attention_in_words(patterns: Mapping[str, NDArray[np.floating]]) -> str:
    """Describe the maps in words: for each head the lag with the largest mean share over all
    queries.

    Args:
        patterns: Name of the head → ``[query, key]``.
    """
    return ", ".join(f"{name} {_most(pattern)}" for name, pattern in patterns.items())


def _most(pattern: NDArray[np.floating]) -> str:
    lags = range(1 - len(pattern), len(pattern))
    shares = {lag: float(np.trace(pattern, offset=-lag)) / len(pattern) for lag in lags}
    lag = max(shares, key=lambda lag: shares[lag])
    return f"{shares[lag]:.2f} at lag {lag}"


def attention_on_tokens(
    patterns: Mapping[str, NDArray[np.floating]], tokens: Sequence[str], *, columns: int = 4
) -> Figure:
    """Draw attention on one text, heads side by side on one scale, with the tokens as labels.

    Args:
        patterns: Name of the head → ``[query, key]``, shares (or, without a normaliser, a kernel).
        tokens: Texts of the positions.
        columns: The largest number of columns of the grid.
    """
    top = max(*(float(np.abs(pattern).max()) for pattern in patterns.values()), _LEAST)
    columns = min(columns, len(patterns))
    rows, wide = -(-len(patterns) // columns), max(1.8, 0.17 * len(tokens))
    places, names = range(len(tokens)), [_visible(token) for token in tokens]
    with style():
        figure = Figure(figsize=((wide + 0.6) * columns + 0.8, (wide + 1.1) * rows))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(patterns) :]:
            axes.set_visible(False)
        for axes, name in zip(grid.flat, patterns, strict=False):
            image = axes.imshow(_past(patterns[name]), cmap=AMOUNT, vmin=0, vmax=top)
            axes.set(title=name, xlabel="key (token)", ylabel="query (token)")
            axes.set_xticks(places, names, rotation=90, family="monospace", size=6)
            axes.set_yticks(places, names, family="monospace", size=6)
        figure.colorbar(image, ax=grid, label="attention (share)", pad=0.02)
    return figure


def attention_grid(patterns: Mapping[str, NDArray[np.floating]], tokens: Sequence[str]) -> Figure:
    """Draw attention of very many heads on one text: small maps, a layer's heads side by side.

    Args:
        patterns: ``L0H1`` → ``[query, key]``; each map has a scale of its own.
        tokens: Texts of the positions, written once below the grid.
    """
    names = list(patterns)
    layers = sorted({int(name[1:].partition("H")[0]) for name in names})
    most = max(sum(name.startswith(f"L{layer}H") for name in names) for layer in layers)
    across = min(most, 12)
    rows = [
        [name for name in names if name.startswith(f"L{layer}H")][start : start + across]
        for layer in layers
        for start in range(0, most, across)
    ]
    rows = [row for row in rows if row]
    with style():
        figure = Figure(figsize=(1.05 * across + 0.4, 1.2 * len(rows) + 0.8))
        grid = figure.subplots(len(rows), across, squeeze=False)
        for line, row in zip(grid, rows, strict=True):
            for axes in line[len(row) :]:
                axes.set_visible(False)
            for axes, name in zip(line, row, strict=False):
                top = float(np.abs(patterns[name]).max()) or 1.0
                axes.imshow(_past(patterns[name]), cmap=AMOUNT, vmin=0, vmax=top)
                axes.set_title(name, size=7, pad=2)
                axes.set_xticks([])
                axes.set_yticks([])
        words = " ".join(_visible(token) for token in tokens)
        shown = words if len(words) <= 150 else f"{words[:149]}…"
        figure.supxlabel(shown.replace("$", r"\$"), size=7, family="monospace")
    return figure


def _visible(token: str) -> str:
    """Return a token with its spaces and line breaks made visible, as the viewer of a page shows
    it."""
    shown = token.replace("\n", "↵").replace("\t", "→")
    return re.sub("^ +| +$", lambda spaces: "·" * len(spaces[0]), shown) or "∅"


def _past(pattern: NDArray[np.floating]) -> np.ma.MaskedArray:
    """Mask the keys that a causal head cannot see; later keys that it does attend to are kept."""
    return np.ma.masked_array(pattern, mask=np.triu(np.ones_like(pattern), 1) > np.abs(pattern))


@dataclass(frozen=True)
class RoundsPanel:
    """One column of the figure of :func:`rounds_by_layer`: what was measured on one model.

    Attributes:
        title: The title of the column.
        places: Names of the places in the residual stream that are probed, in order.
        latents: Names of the latents, in the order of the task's rounds.
        decodable: r² of a linear probe's held-out predictions, ``[place, latent]``.
        memories: Names of the memories.
        layers: Names of the layers that have attention.
        offsets: Lag minus the lag at which the memory stands, in positions, ``[offset]``.
        attention: ``[memory, layer, offset]``: the sum of the heads' signed kernels along the
            memory's direction, as shares of its total absolute weight; the absolute values over
            ``offset`` sum to at most 1.
    """

    title: str
    places: Sequence[str]
    latents: Sequence[str]
    decodable: Float[np.ndarray, "place latent"]
    memories: Sequence[str]
    layers: Sequence[str]
    offsets: Sequence[int]
    attention: Float[np.ndarray, "memory layer offset"]


def rounds_by_layer(panels: Sequence[RoundsPanel]) -> Figure:
    """Draw models side by side: decodability by layer (above) and attention by lag (below)."""
    places = max(len(panel.places) for panel in panels)
    layers = max(len(panel.layers) for panel in panels)
    with style():
        width = sum(max(0.62 * len(panel.latents) + 1.6, 4.0) for panel in panels) + 1.0
        figure = Figure(figsize=(width, 0.34 * places + 0.42 * layers + 2.5))
        shares = [len(panel.latents) for panel in panels]
        columns = figure.subfigures(1, len(panels), width_ratios=shares, squeeze=False)[0]
        for column, panel in zip(columns, panels, strict=True):
            above, below = column.subfigures(2, 1, height_ratios=[places + 3.2, 1.3 * layers + 3.2])
            _decodability(above, panel)
            _attention(below, panel)
    return figure


def _decodability(figure: Any, panel: RoundsPanel) -> None:
    axes = figure.subplots()
    shown = Panel(panel.title, np.clip(panel.decodable, 0, 1), panel.places)
    image = draw_maps([axes], [shown], panel.latents, across="latent, in the order of the rounds")
    figure.colorbar(image, ax=axes, label="held-out r², linear probe", pad=0.02)


def _attention(figure: Any, panel: RoundsPanel) -> None:
    grid = figure.subplots(1, len(panel.memories), sharey=True, squeeze=False)[0]
    for axes, memory, shares in zip(grid, panel.memories, panel.attention, strict=True):
        image = axes.imshow(shares, cmap=SIGNED, vmin=-1, vmax=1, aspect="auto")
        axes.set_title(f"looking for {memory}", fontsize=9)
        axes.set_xlabel("lag − its location")
        axes.set_xticks(range(len(panel.offsets)), [f"{offset:+d}" for offset in panel.offsets])
        axes.set_yticks(range(len(panel.layers)), panel.layers)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(grid), label="summed kernel\n(share of weight)", pad=0.02)


Array = NDArray[Any]

_SHOWN = 0.995
_OFF = "entry / RMS off the diagonal"
_PAGE, _WIDE_MAP, _NARROW_MAP = 14.0, 9.0, 5.0  # inches
_NAME = 0.28  # inches that a head's name takes


def circuit_crops(
    crops: Sequence[Array], titles: Sequence[str], *, columns: int = 4, title: str | None = None
) -> Figure:
    """Draw heat maps of the corners of several circuits, one panel each, on one scale.

    Circuits differ in size by orders of magnitude, so each is divided by the root mean square of
    its off-diagonal entries: the colour of a diagonal shows how much it stands out.

    Args:
        crops: Matrices [size, size], or any shape whose rows and columns have the same meaning.
        titles: The title of each crop.
        columns: The number of panels in a row of the figure.
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
    """Return the root mean square off the diagonal; if it is 0, that of all entries; if that is 0,
    1."""
    values = np.asarray(crop, dtype=float)
    sizes = [float(np.sqrt(np.mean(some**2))) for some in (_off(values), values) if some.size]
    return next((size for size in sizes if size > 0), 1.0)


def _largest_off_diagonal(crop: Array) -> float:
    """Return 1.5 times a high quantile of the absolute entries off the diagonal; if it is 0, the
    largest of all."""
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
    """Draw heat maps of one number per head, layers downwards and heads across, several side by
    side.

    Maps with the same label share one colour scale and one bar. NaN is marked by a dash, infinity
    by ∞; a map without any number says so.

    Args:
        values: ``[layer, head]`` each; NaN if a layer has no such head, or nothing was measured.
        labels: The label of each map: the quantity, with its unit.
        titles: The titles above the maps.
        strongest: How many of the largest |values| to name on each map.
        columns: The number of maps side by side, 1 for a narrow screen; by default as many as fit a
            page, but at least one.
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
    """Return whether any finite value is below 0, and the largest finite absolute value."""
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
    """Write heads' names on the cells of the largest |values|; with ``beside``, on a light
    background, because the names are wider than the cells."""
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
    """Mark NaN by a dash and infinity by ∞; if a map has no number at all, say so in words."""
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
    """Draw histograms of all heads' scores with the range that the null allows, one panel each.

    Args:
        scores: (scores ``[head]``, null means, null standard deviations), for each head or one for
            all; the range from the lowest to the highest head's three deviations is shaded.
        label: The score's name, with its unit.
        titles: The titles above the panels.
        columns: The number of panels side by side; all of them by default.
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
    label, bins = _legend_of_heads(finite.size, lost), _bins(finite)
    # one shape is drawn sooner than forty bars
    axes.hist(finite, bins, histtype="stepfilled", color=PALETTE["blue"], label=label)
    axes.axvspan(low, high, color=PALETTE["orange"], alpha=0.5, lw=0, zorder=0, label="null ± 3 sd")
    axes.locator_params(axis="x", nbins=5)
    axes.axvline(float(np.nanmean(mean)), color=MUTED, lw=0.8)
    axes.legend(loc="best")


def _legend_of_heads(shown: int, lost: int) -> str:
    return f"{shown} heads" + (f", {lost} without a finite number" if lost else "")


def _bins(scores: Array) -> list[float]:
    """Return the edges of forty histogram bars; if all scores are equal, an interval of visible
    width."""
    low, high = float(scores.min(initial=np.inf)), float(scores.max(initial=-np.inf))
    least = 1e-6 * max(abs(low), abs(high), 1e-6)
    if high - low < least:
        low, high = low - least, high + least
    edges: list[float] = np.linspace(low, high, 41).tolist()
    return edges
