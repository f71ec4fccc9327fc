import numpy as np
import pandas as pd
import pytest

from analyses.figures.comparison import error_table
from analyses.figures.graph import AttentionPair, PointGraph, attention_graph, attention_pairs
from analyses.figures.spectra import spectra_by_input, spectra_by_width
from analyses.figures.sweep import sweep


def test_a_sweep_draws_medians_points_rank_and_slope() -> None:
    rows = [("a", "trained", m, seed, (seed + 1) / m) for m in (1, 2, 4) for seed in range(3)]
    table = pd.DataFrame(rows, columns=["target", "model", "m_h", "seed", "error"])
    figure = sweep(
        table, x="m_h", across="width of the head, m_h", by="model", panel="target",
        label="mean square error", at={"a": ("m_h = rank", 2.0)}, slopes={"a": -1.0},
    )  # fmt: skip
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["trained"].get_ydata().tolist() == [2, 1, 0.5]
    assert list(lines["m_h = rank"].get_xdata()) == [2, 2]
    assert np.allclose(lines["theory, slope -1"].get_ydata(), [2, 1, 0.5])
    assert axes.get_xlabel() == "width of the head, m_h"
    assert axes.get_ylabel() == "mean square error"


def test_spectra_figures_show_every_value_and_the_reference() -> None:
    values = np.random.default_rng(0).random((20, 5))
    figure = spectra_by_input(
        {"one": values, "two": values}, reference=np.array([0.5, 0.2]), shown=4
    )
    assert len(figure.axes) == 2
    dots = figure.axes[0].get_lines()[0].get_ydata()
    assert np.allclose(dots, values.mean(0)[:4])
    widths = spectra_by_width({2: values[:, :2], 4: values[:, :4]}, reference=np.ones(3))
    labels = [t.get_text() for t in widths.axes[0].get_legend().get_texts()]
    assert labels == ["m_h = 2", "m_h = 4", "target, σ_k"]
    assert widths.axes[0].get_yscale() == "log"


def test_error_table_writes_median_range_and_the_papers_number() -> None:
    rows = [("RNN", "as it is", seed, 10.0**-seed, 2e-3) for seed in (1, 2, 3)]
    rows += [("LSTM", "as it is", 0, 1e-5, float("nan"))]
    table = pd.DataFrame(rows, columns=["model", "setting", "seed", "error", "paper"])
    axes = error_table(table).axes[0]
    assert [t.get_text() for t in axes.texts] == [
        "1.0e-02\n1e-03 … 1e-01\npaper 2.0e-03",
        "1.0e-05",
    ]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["RNN", "LSTM"]


def test_graph_draws_an_arrow_for_every_weight_that_counts() -> None:
    attention = np.array([[0.0, 0.9, 0.1], [1.0, 0.0, 0.0], [0.97, 0.03, 0.0]])
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    graph = PointGraph("g", points, np.array([0, 1, 1]), attention, np.array([1, 0, 0]))
    axes = attention_graph([graph]).axes[0]
    assert len([t for t in axes.texts if t.arrow_patch is not None]) == 4
    pairs = attention_pairs([AttentionPair("a", np.eye(3), attention)])
    shown = [axes.get_images()[0].get_array() for axes in pairs.axes[:2]]
    assert np.array_equal(shown[0], np.eye(3))
    assert shown[1][0, 1] == pytest.approx(0.9)
