"""Figures of depth show every model where it belongs."""

import numpy as np
import pandas as pd

from analyses.figures.frontier import depth_frontier, shallower_at_best
from analyses.figures.layers import layer_comparison
from interp.figures.maps import Panel


def grid(blocks: list[int], depths: list[int], seeds: int) -> pd.DataFrame:
    return pd.DataFrame([
        {"k": k, "depth": d, "seed": s, "bin": "far", "exact_match": (d >= k - 2) * (1 - 0.01 * s)}
        for k in blocks for d in depths for s in range(seeds)
    ])  # fmt: skip


def test_the_frontier_has_a_strip_a_seed_and_the_line_below_k_minus_2() -> None:
    table = grid([3, 4, 6], [1, 2, 3], 2)
    axes = depth_frontier(table, ["far"], label="share").axes[0]
    shown = axes.images[0].get_array()
    assert shown is not None
    assert shown.shape == (3, 6)
    assert shown[0, :2].tolist() == [1.0, 0.99]  # k = 3, depth 1, best first
    assert shown[0, 2:4].tolist() == [0.0, 0.0]
    line = axes.lines[-1]
    assert np.asarray(line.get_ydata()).tolist() == [-0.5, -0.5, 0.5, 0.5, 2.5, 2.5]


def test_too_few_layers_stand_beside_what_is_possible() -> None:
    table = grid([3, 4, 5], [1, 2, 3], 3)
    bounds = pd.DataFrame({"k": [4, 5], "exact_match_at_most": [0.4, 0.2]})
    programs = pd.DataFrame({"k": [4, 5], "exact_match": [0.1, 0.3]})
    axes = shallower_at_best(table, bounds, programs, label="share").axes[0]
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
    assert drawn["trained, depth k − 3"].tolist() == [0.0] * 6
    assert drawn["trained, depth k − 2"].tolist() == [1.0, 0.99, 0.98] * 2
    assert drawn["trained, depth 1"].tolist() == [0.0] * 3  # of k = 5; of k = 4 it is k − 3
    assert drawn["bound on depth 1"].tolist() == [0.4, 0.2]


def test_layers_have_a_dot_a_model_and_a_diamond_for_the_construction() -> None:
    measures = pd.DataFrame([
        {"group": "k=4", "layer": layer, "model": m, "constructed": m == "c", "measure": measure,
         "value": 0.5}
        for layer in (1, 2) for m in ("a", "b", "c") for measure in ("even", "broken")
    ])  # fmt: skip
    panel = Panel("one", np.eye(3), ["x", "y", "z"])
    figure = layer_comparison(
        [panel, panel], ["in", "att", "ffn"], measures, label="share", across="site",
        levels={"even": 0.25},
    )  # fmt: skip
    strips = [axes for axes in figure.axes if axes.get_title() in ("even", "broken")]
    assert len(strips) == 2
    drawn = {str(line.get_label()): line for line in strips[0].lines}
    assert len(np.asarray(drawn["trained"].get_xdata())) == 4
    assert len(np.asarray(drawn["compiled"].get_xdata())) == 2
    assert np.asarray(drawn["the rule's level"].get_ydata()).tolist() == [0.25, 0.25]
    assert [t.get_text() for t in strips[1].get_xticklabels()] == ["1\nk=4", "2"]
