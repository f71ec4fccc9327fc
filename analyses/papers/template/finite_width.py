"""Do random models of growing width have the limit's kernel?

The features of a random one-layer model at initialisation give an empirical kernel between strings;
its distance to the limit has three causes that all shrink like width^(−1/2): embeddings that are
not quite orthogonal, few heads, few neurons. Heads and neurons grow with the width here, so that is
the slope to expect. Agreement at initialisation says nothing about a model after training.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from analyses.papers.template.nngp import (
    NNGPKernel,
    feature_kernel,
    quadrature_kernel,
    theory_model,
)

__all__ = ["tends_to_limit"]

_STRINGS = np.array([[0, 1, 0], [0, 1, 1], [2, 3, 2], [2, 3, 3], [4, 4, 4]])
_NODES = 16
_SLOPE, _TOLERANCE = -0.5, 0.2


def tends_to_limit(setting: Setting) -> Verdict:
    """Test that empirical kernels tend to the limit (ledger: ``template-finite-width``)."""
    widths, rows = sorted(setting.options["widths"]), []
    for a in (0.0, setting.options["a"]):
        kernel = NNGPKernel(beta=setting.options["beta"], a=a)
        limit = quadrature_kernel(_STRINGS, kernel, nodes=_NODES)
        for width in widths:
            for seed in setting.seeds:
                found = _empirical(kernel, width, seed)
                error = float(np.sqrt(np.mean((found / limit - 1) ** 2)))
                rows.append([f"a = {a:g}", "random models", width, seed, error])
    table = pd.DataFrame(rows, columns=["target", "model", "m_h", "seed", "error"])
    means = table.groupby(["target", "m_h"])["error"].mean().unstack()
    slopes = {
        str(target): float(np.polyfit(np.log(widths), np.log(row[widths]), 1)[0])
        for target, row in means.iterrows()
    }
    falls = bool((means[widths].diff(axis=1).iloc[:, 1:] < 0).all(axis=None))
    near = all(abs(slope - _SLOPE) <= _TOLERANCE for slope in slopes.values())
    told = ", ".join(f"{slope:.2f} ({target})" for target, slope in slopes.items())
    last = {str(target): float(row[widths[-1]]) for target, row in means.iterrows()}
    words = (
        f"The relative distance to the limit falls with slopes {told} in width (expected −0.5), to "
        + ", ".join(f"{error:.3f} ({target})" for target, error in last.items())
        + f" at width {widths[-1]}."
    )
    errors = {
        f"{t}, width {w}": g["error"].tolist() for (t, w), g in table.groupby(["target", "m_h"])
    }
    figure = sweep(
        table,
        x="m_h",
        across="width of the random models",
        by="model",
        panel="target",
        label="relative distance to the limit (r.m.s.)",
        slopes=dict.fromkeys(slopes, _SLOPE),
    )
    return Verdict(
        decide(falls and near, falls),
        words,
        f"slopes {told}",
        {"slopes": slopes, "errors": errors},
        {"errors": table.rename(columns={"m_h": "width"})},
        {"errors": Drawing(figure, "Distance of random models' kernels to the limit by width.")},
    )


def _empirical(kernel: NNGPKernel, width: int, seed: int) -> np.ndarray:
    model = theory_model(
        kernel, vocabulary=5, length=_STRINGS.shape[1], width=width, heads=width, seed=seed
    )
    return feature_kernel(model, torch.from_numpy(_STRINGS))
