"""Figures of the memory proofs: everything given is drawn and named."""

import numpy as np
import pandas as pd

from analyses.figures.costs import gating_costs_figure
from analyses.figures.kernels import KernelPanel, errors_by_heads, kernel_fits
from interp.figures.maps import RoundsPanel, rounds_by_layer


def test_errors_are_drawn_a_line_a_target_and_precision() -> None:
    rows = [
        (lag, kind, heads, precision, lag / heads)
        for lag in (1, 2)
        for kind in ("lin", "log")
        for heads in (3, 1, 2)
        for precision in ("float64", "float32")
    ]
    table = pd.DataFrame(rows, columns=["target", "positions", "heads", "precision", "error"])
    figure = errors_by_heads(table, ylabel="error", title="Lags")
    lin, log = figure.axes
    drawn = [line for line in lin.lines if len(line.get_xdata()) == 3]
    assert len(drawn) == 4
    assert list(drawn[0].get_xdata()) == [1, 2, 3]
    assert list(drawn[0].get_ydata()) == [1, 1 / 2, 1 / 3]
    assert [text.get_text() for text in log.get_legend().get_texts()] == ["1", "2"]
    assert lin.get_ylabel() == "error"
    assert "dotted: float32" in figure.get_suptitle()


def test_kernels_and_what_their_fits_leave() -> None:
    values = np.array([1.0, 0.5, 0.25])
    panels = [KernelPanel("a", values, {"lin, 2 heads": values + 0.1, "log, 2 heads": values})]
    above, below = kernel_fits(panels).axes
    assert [line.get_label() for line in above.lines] == ["kernel", "lin, 2 heads", "log, 2 heads"]
    assert np.allclose(below.lines[1].get_ydata(), 0.1)


def test_rounds_stand_side_by_side() -> None:
    places, latents = ["embedding", "layer 0, FFN"], ["t1", "x[t-t_1]", "f"]
    panel = RoundsPanel(
        "constructed", places, latents, np.array([[0.0, 0.0, 0.1], [1.0, 0.0, 0.2]]),
        ["x[t-t_1]"], ["layer 1"], [-1, 0, 1], np.array([[[0.0, 0.9, -0.1]]]),
    )  # fmt: skip
    figure = rounds_by_layer([panel, panel])
    titled = [axes for axes in figure.axes if axes.get_title() == "constructed"]
    assert len(titled) == 2
    written = [text.get_text() for text in titled[0].texts]
    assert written == ["0.00", "0.00", "0.10", "1.00", "0.00", "0.20"]
    looking = [axes for axes in figure.axes if axes.get_title().startswith("looking for")]
    assert [tick.get_text() for tick in looking[0].get_xticklabels()] == ["-1", "+0", "+1"]


def test_costs_are_drawn_for_both_ways() -> None:
    rows = [(a, way, a * k, a, a) for a in (2, 3) for k, way in ((1, "shifted"), (2, "gated"))]
    table = pd.DataFrame(rows, columns=["candidates", "way", "heads", "neurons", "weights"])
    heads, _, _ = gating_costs_figure(table).axes
    assert [list(line.get_ydata()) for line in heads.lines] == [[4, 6], [2, 3]]
