"""All heads of a model at once: points over two numbers, and attention lag by lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, INK, MUTED, PALETTE, size, style

__all__ = ["head_points", "lags_of_heads"]

Numbers = NDArray[np.floating]


def head_points(
    names: Sequence[str],
    across: Numbers,
    up: Numbers,
    *,
    roles: Sequence[str],
    confirmed: Sequence[bool],
    labels: tuple[str, str],
) -> Figure:
    """Heads as points, coloured by role, filled and named where it is confirmed.

    Args:
        names: The heads.
        across, up: ``[head]``; what is missing or infinite is a × on the axis.
        roles: Each head's first role, or empty.
        confirmed: Whether it is confirmed.
        labels: Of both axes.
    """
    known = np.isfinite(across) & np.isfinite(up)
    kinds = sorted({role for role in roles if role})
    colours = dict(zip(kinds, [*PALETTE.values()] * 3, strict=False))
    with style():
        figure = Figure(figsize=size(1.2, 1.6))
        axes = figure.subplots()
        for kind in [*kinds, ""]:
            mine = np.array([role == kind for role in roles])
            for sure in (True, False):
                chosen = mine & known & (np.array(confirmed, dtype=bool) == sure)
                colour = colours.get(kind, MUTED)
                face, label = (
                    (colour, kind) if sure else ("white", f"{kind or 'no role'}, not sure")
                )
                if chosen.any():
                    axes.plot(
                        across[chosen], up[chosen], "o", mfc=face, mec=colour, ms=6, label=label
                    )
        if (~known).any():
            _mark_missing(axes, np.where(known, 0.0, across), np.where(known, 0.0, up), ~known)
        for name, x, y, sure in zip(names, across, up, confirmed, strict=True):
            if np.isfinite(x) and np.isfinite(y) and sure:
                axes.annotate(name, (x, y), (4, 3), textcoords="offset points", size=6, color=INK)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _mark_missing(axes: Axes, across: Numbers, up: Numbers, missing: NDArray[np.bool_]) -> None:
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    x = np.where(np.isfinite(across), across, left)[missing]
    y = np.where(np.isfinite(up), up, bottom)[missing]
    told = f"{int(missing.sum())} not measured or infinite"
    axes.plot(x, y, "x", color=MUTED, ms=6, clip_on=False, label=told)


def lags_of_heads(
    shares: Mapping[str, Numbers], names: Sequence[str], lags: Sequence[int]
) -> Figure:
    """Mean attention of every head at every lag, kinds of rows side by side on one scale.

    Args:
        shares: Kind of rows → ``[head, lag]``; grey where it was not measured.
        names: The heads, first on top.
        lags: In tokens.
    """
    top = max((float(np.nanmax(one, initial=0.0)) for one in shares.values()), default=0.0) or 1.0
    places = range(0, len(lags), max(1, len(lags) // 6))
    with style():
        figure = Figure(figsize=(3.2 * len(shares) + 0.9, 0.16 * len(names) + 1.3))
        grid = list(figure.subplots(1, len(shares), squeeze=False, sharey=True).flat)
        for axes, (kind, values) in zip(grid, shares.items(), strict=True):
            axes.set_facecolor("lightgrey")
            image = axes.imshow(
                np.ma.masked_invalid(values), cmap=AMOUNT, vmin=0, vmax=top, aspect="auto"
            )
            axes.set(title=kind, xlabel="lag (tokens)")
            axes.set_xticks(places, [str(lags[place]) for place in places])
            axes.set_yticks(range(len(names)), names, size=6)
        figure.colorbar(image, ax=grid, label="mean attention (share)", pad=0.02)
    return figure
