"""Figures of heads' circuits: who reads whom, and corners of the strongest.

They are drawn from tables alone.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from interp.figures.diagonals import circuit_crops
from interp.figures.pairs import Pair, pair_lines
from probes.roles.decision import no_roles
from prooflens.pages.findings import head_names

__all__ = ["CROPS", "crop_caption", "crop_figure", "reading_figure"]

CROPS = "crops-"
"""Begins the name of a table of corners; the circuit's name follows."""
_PAIRS, _NAMED = 24, 3
_MARKED = ("previous-token", "induction", "duplicate-token")


def reading_figure(weights: pd.DataFrame, roles: pd.DataFrame) -> tuple[Figure, str] | None:
    """Which heads could read which by K-composition, and a caption; None where there is no pair.

    Args:
        weights: A head table of all heads with k_composition.
        roles: The role table: heads of some roles are marked, and where there are both, only
            induction heads that read previous-token heads are shown.
    """
    table = weights[weights["metric"] == "k_composition"]
    if table.empty:
        return None
    roles = roles[roles["head"] >= 0] if len(roles) else no_roles()
    marked: dict[str, list[tuple[int, int]]] = {}
    for role in _MARKED:
        own = roles[roles["role"] == role]
        marked[role] = list(zip(own["layer"], own["head"], strict=True))
    writers = head_names(roles[roles["role"] == "previous-token"])
    readers = head_names(roles[roles["role"] == "induction"])
    named = pd.Series(head_names(table), index=table.index, dtype=object)
    chosen = table[table["target"].isin(writers) & named.isin(readers)]
    told = "K-composition of induction heads with previous-token heads"
    if chosen.empty:
        chosen, told = table, "The strongest K-compositions of all pairs"
    top: list[Any] = list(chosen.nlargest(_PAIRS, "effect").itertuples())
    pairs: list[Pair] = [(_place(r.target), (int(r.layer), int(r.head)), r.score) for r in top]
    layers, heads = (int(weights[name].max()) + 1 for name in ("layer", "head"))
    numbers = ", ".join(f"{r.target} → L{r.layer}H{r.head} {r.score:.2f}" for r in top[:_NAMED])
    figure = pair_lines([heads] * layers, pairs, "K-composition", named=marked)
    return figure, f"{told}: {numbers}."


def crop_figure(crops: pd.DataFrame, circuit: str) -> Figure:
    """Corners of the strongest circuits.

    Args:
        crops: A table ``crops-QK`` or ``crops-OV``.
        circuit: Its circuit.
    """
    columns = [name for name in crops.columns if name.startswith("column ")]
    found = [rows for _, rows in crops.groupby(["layer", "head"], sort=False)]
    panels = [rows[columns].to_numpy() for rows in found]
    return circuit_crops(panels, _titles(crops), title=f"{circuit}: largest |trace share|")


def crop_caption(crops: pd.DataFrame, circuit: str) -> str:
    """What the figure shows, with its numbers."""
    told = ", ".join(_titles(crops))
    return f"{circuit} circuits of the heads with the largest |trace share|: {told}."


def _titles(crops: pd.DataFrame) -> list[str]:
    heads = crops.drop_duplicates(["layer", "head"])
    scores = zip(head_names(heads), heads["score"], strict=True)
    return [f"{name} {score:+.3f}" for name, score in scores]


def _place(name: str) -> tuple[int, int]:
    layer, _, head = name[1:].partition("H")
    return int(layer), int(head)
