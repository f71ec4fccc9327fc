"""Corners of the strongest circuits as tables, which a store keeps so that they can be drawn again.

A table has a line for each head and row of the corner: ``layer``, ``head``, ``score`` (the trace
share), ``row`` and ``column 0`` …. It shows entries of W_Q W_Kᵀ or W_V W_O in the residual basis
and speaks of directions, not of tokens.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from interp.weights.head_weights import HeadWeights
from interp.weights.weight_table import circuit_crop

CROPS = "crops-"
"""Begins the name of a sealed table; the circuit's name follows."""
_HEADS = 8


def crop_table(factors: HeadWeights, weights: pd.DataFrame, circuit: str) -> pd.DataFrame:
    """Corners of the circuits with the largest |trace share|, the largest first.

    Args:
        factors: The weights of the heads.
        weights: A head table of theirs with trace shares.
        circuit: ``QK`` or ``OV``.

    Returns:
        The table; empty where no head has a trace share.
    """
    rows = weights[(weights["metric"] == "trace_share") & (weights["circuit"] == circuit)]
    top: Any = rows.assign(size=rows["score"].abs()).nlargest(_HEADS, "size").itertuples()
    crops = [_crop(factors, one, circuit) for one in top]
    return pd.concat(crops, ignore_index=True) if crops else pd.DataFrame()


def _crop(factors: HeadWeights, one: Any, circuit: str) -> pd.DataFrame:
    crop = circuit_crop(factors, int(one.layer), int(one.head), circuit)
    lines = pd.DataFrame(crop, columns=[f"column {i}" for i in range(crop.shape[1])])
    place = {"layer": int(one.layer), "head": int(one.head), "score": float(one.score)}
    for at, (name, value) in enumerate(place.items()):
        lines.insert(at, name, value)
    lines.insert(len(place), "row", range(len(lines)))
    return lines
