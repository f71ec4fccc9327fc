"""Heads' attention, query against key: as a mean over rows, or on one text with its tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, style

__all__ = ["attention_grid", "attention_in_words", "attention_maps", "attention_on_tokens"]

_LABEL = "mean attention (share)"
_LEAST = 1e-12


def attention_maps(patterns: Mapping[str, NDArray[np.floating]], *, columns: int = 4) -> Figure:
    """Mean attention of each query position to each key position, heads side by side on one scale.

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
    """The maps in words: of every head the lag with the largest share, a mean over queries.

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
    """Attention on one text, heads side by side on one scale, with the tokens as labels.

    Args:
        patterns: Name of the head → ``[query, key]``, shares (or, without a normaliser, a kernel).
        tokens: Texts of the positions.
        columns: Of the grid, at most.
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
    """Attention of very many heads on one text: small maps, a layer's side by side.

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
    """A token whose spaces and line breaks can be seen, as the viewer of a page shows it."""
    shown = token.replace("\n", "↵").replace("\t", "→")
    return re.sub("^ +| +$", lambda spaces: "·" * len(spaces[0]), shown) or "∅"


def _past(pattern: NDArray[np.floating]) -> np.ma.MaskedArray:
    """The pattern without the keys that a causal head cannot see; keys that it attends to are
    kept."""
    return np.ma.masked_array(pattern, mask=np.triu(np.ones_like(pattern), 1) > np.abs(pattern))
