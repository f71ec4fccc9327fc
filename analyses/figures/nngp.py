"""Figures of kernels on templates, and of how training changes heads' identity scalars and
circuits.

Matrices are shown with their entries where they are small, on one scale a figure; scalars as dots a
head; circuits side by side before and after training on a scale of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prooflens.plot import AMOUNT, MUTED, PALETTE, SIGNED, size, style

__all__ = ["before_and_after", "kernel_matrices", "scalars_per_head"]

Array = NDArray[Any]
_FEW = 8


def kernel_matrices(
    matrices: Mapping[str, Array], *, labels: Sequence[str], bounds: Sequence[int] = ()
) -> Figure:
    """Kernel matrices side by side.

    Args:
        matrices: Title → matrix.
        labels: Names of rows and columns; shown where there are few.
        bounds: The rows at which another template begins.
    """
    large = any(len(m) > _FEW for m in matrices.values())
    shown = np.concatenate(
        [m[~np.eye(len(m), dtype=bool) | (not large)] for m in matrices.values()]
    )
    least, most = float(shown.min()), float(shown.max())
    with style():
        figure = Figure(figsize=(2.9 * len(matrices) + 0.7, 2.9))
        grid = figure.subplots(1, len(matrices), squeeze=False)[0]
        for axes, (title, matrix) in zip(grid, matrices.items(), strict=True):
            image = axes.imshow(matrix, cmap=AMOUNT, vmin=least, vmax=most)
            axes.set(title=title, xlabel="string", ylabel="string")
            axes.spines[:].set_visible(False)
            if len(matrix) <= _FEW:
                _entries(axes, matrix, least + 0.6 * (most - least))
                axes.set_xticks(range(len(labels)), labels, rotation=45)
                axes.set_yticks(range(len(labels)), labels)
                axes.set(xlabel="template", ylabel="template")
            for bound in bounds:
                axes.axhline(bound - 0.5, color="white", lw=1)
                axes.axvline(bound - 0.5, color="white", lw=1)
        label = "kernel K(X, Y)" + ("; diagonal not to scale" if large else "")
        figure.colorbar(image, ax=list(grid), label=label, pad=0.02)
    return figure


def scalars_per_head(table: pd.DataFrame) -> Figure:
    """The learned identity scalars, one dot per head.

    Args:
        table: Columns ``scalar`` (``a`` or ``b``), ``model``, ``layer``, ``head``, ``value`` (as
            it acts: times the multiplier).
    """
    scalars = list(dict.fromkeys(table["scalar"]))
    names = list(dict.fromkeys(table["model"]))
    colours = list(PALETTE.values())
    units = {"a": "a (score per unit of ⟨x, y⟩)", "b": "b (share of x that is copied)"}
    with style():
        figure = Figure(figsize=size(1, 1.3 * len(scalars)))
        for axes, scalar in zip(
            figure.subplots(1, len(scalars), squeeze=False)[0], scalars, strict=True
        ):
            rows = table[table["scalar"] == scalar]
            heads = sorted(
                {(int(a), int(b)) for a, b in zip(rows["layer"], rows["head"], strict=True)}
            )
            for i, name in enumerate(names):
                mine = rows[rows["model"] == name]
                place = [
                    heads.index((int(a), int(b)))
                    for a, b in zip(mine["layer"], mine["head"], strict=True)
                ]
                axes.scatter(place, mine["value"], s=22, color=colours[i], alpha=0.8, label=name)
            axes.axhline(0, color=MUTED, lw=0.8)
            named, upright = [f"L{a}H{b}" for a, b in heads], len(heads) <= _FEW
            axes.set_xticks(range(len(heads)), named, rotation=0 if upright else 90)
            axes.set(xlabel="head", ylabel=units.get(scalar, scalar))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def before_and_after(pairs: Mapping[str, tuple[Array, Array]], *, basis: str) -> Figure:
    """Circuits before (above) and after training (below), one column per circuit.

    Args:
        pairs: Title → (matrix before, matrix after), on one symmetric scale a column.
        basis: What the rows and columns stand for.
    """
    with style():
        figure = Figure(figsize=(2.7 * len(pairs) + 0.3, 5.0))
        grid = figure.subplots(2, len(pairs), squeeze=False)
        for column, (title, both) in enumerate(pairs.items()):
            limit = max(float(np.quantile(np.abs(m), 0.999)) for m in both) or 1.0
            for row, (when, matrix) in enumerate(zip(("before", "after"), both, strict=True)):
                axes = grid[row, column]
                image = axes.imshow(matrix, cmap=SIGNED, vmin=-limit, vmax=limit)
                axes.set(title=f"{title}, {when}")
                axes.set_xticks([0, matrix.shape[1] - 1])
                axes.set_yticks([0, matrix.shape[0] - 1])
            figure.colorbar(image, ax=list(grid[:, column]), fraction=0.05, pad=0.02)
        figure.supxlabel(basis, fontsize=9)
        figure.supylabel(basis, fontsize=9)
    return figure


def _entries(axes: Axes, matrix: Array, light: float) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        colour = "black" if value > light else "white"
        axes.text(column, row, f"{value:.4f}", ha="center", va="center", color=colour, size=7)
