"""Nested memories layer by layer, from their tables: which layer first holds which round, and which
ablation removes it, in the model and in the proof's construction
(:func:`probes.nesting.nested_rounds`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.figures.maps import RoundsPanel, rounds_by_layer

ROUNDS_CAPTION = (
    "Which layer first holds which latent, and what breaks it: r² that is lost there without the "
    "component that costs most, and without the heads that fetch the round before."
)
"""Caption of the figure that :func:`rounds_side_by_side` draws."""


def rounds_again(readable: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw the figure of the tables ``rounds-readable`` and ``rounds-kernels``."""
    panels = []
    for title, rows in readable.groupby("model", sort=False):
        mine = kernels[kernels["model"] == title]
        offsets = list(kernels.columns.drop(["model", "memory", "layer"]))
        memories = list(dict.fromkeys(mine["memory"]))
        shares = [mine.loc[mine["memory"] == memory, offsets].to_numpy() for memory in memories]
        known = rows.drop(columns=["model", "place"]).dropna(axis=1, how="all")
        panels.append(
            RoundsPanel(
                str(title),
                list(rows["place"]),
                list(known.columns),
                known.to_numpy(),
                memories,
                list(dict.fromkeys(mine["layer"])),
                [int(o) for o in offsets],
                np.array(shares),
            )
        )
    return rounds_by_layer(panels)


def rounds_in_words(table: pd.DataFrame) -> Iterator[str]:
    """Yield one line for each model and latent: where the latent is first decodable, with its r²,
    and how much r² is lost under ablation.

    The ablations are of the earlier component that matters most, and of the heads that fetch the
    previous round.

    Args:
        table: A table with one row for each model and latent, such as ``rounds``.
    """
    rows: list[Any] = list(table.itertuples())
    for row in rows:
        broken = "".join(f"; {words}" for words in _loss_phrases(row))
        yield f"{row.model}: {row.latent} {_place(row)}, r² {row.r2:.2f}{broken}"


def rounds_side_by_side(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table ``rounds`` with one row per latent, to compare models.

    Two columns for each model say where the latent is first decodable, and which ablations lower
    its r² there.
    """
    rows: dict[str, dict[str, str]] = {}
    found: list[Any] = list(table.itertuples())
    for row in found:
        mine = rows.setdefault(row.latent, {"latent": row.latent})
        mine[row.model] = f"{_place(row)}, r² {row.r2:.2f}"
        mine[f"{row.model}: broken"] = "; ".join(_loss_phrases(row)) or "by no component"
    return pd.DataFrame(list(rows.values()))


def _place(row: Any) -> str:
    if row.after == "embedding":
        return "in the embedding"
    return row.after if row.layer < 0 else f"first after layer {row.layer}'s {row.after}"


def _loss_phrases(row: Any) -> Iterator[str]:
    """Yield how much r² a latent loses without a component, and without the round before it."""
    if row.without:
        yield f"without {row.without} it falls by {row.lost:.2f}"
    if row.before == row.before:
        yield f"without the heads of the round before by {row.before:.2f}"
