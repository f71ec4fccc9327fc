"""Figures of template claims show every row they are given."""

import numpy as np
import pandas as pd
from matplotlib.collections import PathCollection

from analyses.figures.dots import accuracy_sweep, points, strips
from analyses.figures.nngp import before_and_after, kernel_matrices, scalars_per_head

TABLE = pd.DataFrame(
    [(m, n, s, 0.5 + 0.1 * s, t) for m in ("plain", "+ aI") for n in (64, 128, 256)
     for s in (0, 1, 2) for t in ("same-different", "aba-abb")],
    columns=["model", "n", "seed", "accuracy", "task"],
)  # fmt: skip


def dots(axes: object) -> int:
    return sum(len(c.get_offsets()) for c in axes.collections if isinstance(c, PathCollection))  # type: ignore[attr-defined]


def test_curves_show_means_and_every_seed() -> None:
    figure = accuracy_sweep(TABLE, x="n", across="strings", panel="task", chance=0.5)
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert dots(axes) == 18
        lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
        assert [list(line.get_ydata()) for line in lines] == [[0.6] * 3] * 2
    legend = figure.axes[-1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "+ aI", "chance"]


def test_points_are_a_dot_a_row_without_lines() -> None:
    table = pd.DataFrame(
        {"model": ["n = 1", "n = 2", "n = 2"], "size": [10, 100, 1000], "accuracy": 0.7}
    )
    axes = points(table, x="size", across="size", chance=0.5).axes[0]
    assert [len(dots.get_offsets()) for dots in axes.collections] == [1, 2]
    assert axes.get_xscale() == "log"
    assert [tuple(line.get_ydata()) for line in axes.lines] == [(0.5, 0.5)]


def test_strips_have_a_row_a_setting() -> None:
    axes = strips(TABLE, group="task", chance=0.5).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["same-different", "aba-abb"]
    assert dots(axes) == len(TABLE)


def test_matrices_write_small_entries_and_bounds() -> None:
    figure = kernel_matrices({"N": np.array([[1.0, 0.25], [0.25, 0.5]])}, labels=["αα", "αβ"])
    assert [t.get_text() for t in figure.axes[0].texts] == ["1.0000", "0.2500", "0.2500", "0.5000"]
    large = kernel_matrices({"K": np.eye(20)}, labels=[], bounds=[12])
    assert len(large.axes[0].lines) == 2


def test_scalars_and_circuits() -> None:
    table = pd.DataFrame([("a", "seed 0", 0, h, 0.1 * h) for h in range(4)],
                         columns=["scalar", "model", "layer", "head", "value"])  # fmt: skip
    axes = scalars_per_head(table).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert dots(axes) == 4
    both = np.eye(5), 3 * np.eye(5)
    figure = before_and_after({"QK, L0H1": both}, basis="symbol")
    assert [a.get_title() for a in figure.axes[:2]] == ["QK, L0H1, before", "QK, L0H1, after"]
