"""Head tables: every score with its null, p, q and effect, as one tidy frame.

A row is one score of one component: ``component`` (``head``, ``ffn``, ``layer``, ``group``),
``layer``, ``head`` (−1 where it does not apply), ``group`` (a set of heads that act together),
``circuit``, ``metric``, ``target`` (a latent, a lag, another head …), then ``score``,
``null_mean``, ``null_std``, ``p``, ``q`` and ``effect`` = score − null_mean, in the metric's own
unit. Measurements over inputs add ``low`` and ``high``, a 95 % interval of the effect over rows
(NaN where none was taken). q is Benjamini–Hochberg over all rows of one circuit and metric.

A small q says that a component is not random, which trained ones rarely are: every rule that
decides something puts a floor under the effect as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64
from scipy.stats import false_discovery_control

from interp.heads.nulls import Null

__all__ = ["COLUMNS", "MEASURED_COLUMNS", "adjust", "adjusted", "head_table", "score_row"]

COLUMNS = (
    "component", "layer", "head", "group", "circuit", "metric", "target",
    "score", "null_mean", "null_std", "p", "q", "effect",
)  # fmt: skip
MEASURED_COLUMNS = (*COLUMNS, "low", "high")


def score_row(
    metric: str,
    score: float,
    null: Null,
    *,
    component: str,
    layer: int,
    head: int = -1,
    group: str = "",
    circuit: str = "",
    target: str = "",
    interval: tuple[float, float] = (math.nan, math.nan),
) -> dict[str, Any]:
    """One row, all but its q."""
    return {
        "component": component,
        "layer": layer,
        "head": head,
        "group": group,
        "circuit": circuit,
        "metric": metric,
        "target": target,
        "score": score,
        "null_mean": null.mean,
        "null_std": null.std,
        "p": null.p,
        "effect": score - null.mean,
        "low": interval[0],
        "high": interval[1],
    }


def head_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of :func:`score_row` as a frame, with q over each circuit and metric."""
    return adjusted([pd.DataFrame(list(rows), columns=[c for c in MEASURED_COLUMNS if c != "q"])])


def adjusted(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables of one model as one, with q taken anew over all their rows of a circuit and metric."""
    table = pd.concat(tables, ignore_index=True)
    family = table.groupby(["circuit", "metric"], sort=False)["p"]
    table["q"] = family.transform(lambda p: adjust(p.to_numpy()))
    return table.reindex(columns=list(MEASURED_COLUMNS))


def adjust(p: Float64[np.ndarray, "test"]) -> Float64[np.ndarray, "test"]:
    """Benjamini–Hochberg q values of one family of tests; NaN stays NaN and counts for nothing."""
    q = np.full(len(p), np.nan)
    known = ~np.isnan(p)
    if known.any():
        q[known] = false_discovery_control(p[known])
    return q
