import numpy as np
import pandas as pd

from analyses.figures.sweep import sweep


def table() -> pd.DataFrame:
    rows = [
        (panel, model, x, seed, error / x * (1 + seed))
        for panel in ("one", "two")
        for model, error in (("trained", 0.5), ("bound", 1e-12))
        for x in (1, 2, 4)
        for seed in (0, 1, 2)
    ]
    return pd.DataFrame(rows, columns=["panel", "model", "x", "seed", "error"])


def test_lines_are_medians_and_dots_are_seeds() -> None:
    figure = sweep(
        table(), x="x", across="x", by="model", label="error", panel="panel", dashed=("bound",),
        levels={"level": 0.1}, least=1e-8,
    )  # fmt: skip
    assert [axes.get_title() for axes in figure.axes] == ["one", "two"]
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert np.allclose(lines["trained"].get_ydata(), [1.0, 0.5, 0.25])
    assert np.allclose(lines["bound"].get_ydata(), 1e-8)
    assert lines["bound"].get_linestyle() == "--"
    dots = [points for c in axes.collections for points in c.get_offsets()]
    assert len(dots) == 9  # the bound has none
    assert axes.get_yscale() == axes.get_xscale() == "log"


def test_axes_are_linear_when_asked() -> None:
    figure = sweep(table(), x="x", across="x", by="model", label="error", log_x=False, log_y=False)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "linear"
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1", "2", "4"]
