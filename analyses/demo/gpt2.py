"""The GPT-2 part of the demo's report: diagonal circuits of all heads, from the weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analyses.report.page import Picture, Section, Table
from analyses.report.weights import strongest
from interp.errors import CheckpointError
from interp.figures.diagonals import circuit_crops, head_maps
from interp.figures.style import save
from interp.weights.head_weights import HeadWeights
from interp.weights.weight_table import circuit_crop, weight_table

__all__ = ["Diagonals", "diagonals"]

_SHOWN, _LISTED = 4, 8
_CIRCUITS = {"QK": "W_K W_Qᵀ", "OV": "W_V W_Oᵀ"}


@dataclass(frozen=True)
class Diagonals:
    """The results of reading GPT-2's weights.

    Attributes:
        table: A head table of both circuits of every head.
        finding: The main finding, in a sentence.
        section: The section of the report.
    """

    table: pd.DataFrame
    finding: str
    section: Section


def diagonals(factors: HeadWeights, folder: Path) -> Diagonals:
    """Score the diagonals of every head's circuits and draw the strongest.

    Raises:
        CheckpointError: if the model's heads have no QK circuit.
    """
    if any("QK" not in layer.circuits for layer in factors):
        raise CheckpointError(f"{factors.name} is no GPT-2: it has heads without a QK circuit")
    table = weight_table(factors, ["basic"])
    figures = (
        _heat_map(table, factors, folder),
        *(_crops(table, factors, circuit, folder) for circuit in _CIRCUITS),
    )
    columns = ["layer", "head", "score", "null_std", "q", "effect"]
    tables = tuple(
        Table(
            strongest(table, circuit, "trace_share", _LISTED)[columns],
            f"Strongest diagonals of {formula}: trace share tr(M) / (√D ‖M‖), its null "
            "(random rotations of the head's bases) and q over all heads.",
        )
        for circuit, formula in _CIRCUITS.items()
    )
    heads = factors.n_layers * factors.n_heads
    words = (
        f"All {heads} heads of {Path(factors.name).name}, read from the attention weights; the "
        "model is not run. A circuit near a multiple of the identity makes a head attend from a "
        "symbol to the same symbol (W_K W_Qᵀ), or copy what it reads (W_V W_Oᵀ), also for "
        "symbols never seen. These are circuits of directions of the residual stream, with the "
        "norm's scale left out, not of tokens; and a diagonal alone does not show that the head "
        "is used so.",
    )
    section = Section("GPT-2: heads with diagonal circuits", words, figures, tables)
    return Diagonals(
        table, _finding(table, heads, (factors.d_head / factors.d_model) ** 0.5), section
    )


def _finding(table: pd.DataFrame, heads: int, ceiling: float) -> str:
    parts = []
    for circuit, formula in _CIRCUITS.items():
        top = strongest(table, circuit, "trace_share", 3)
        named = ", ".join(f"L{r.layer}H{r.head} ({r.score:+.2f})" for r in top.itertuples())
        parts.append(f"{formula} {named}")
    return (
        f"Of GPT-2's {heads} heads, the circuits nearest a multiple of the identity are "
        + " and ".join(parts)
        + f" (trace share, at most {ceiling:.3f} for heads of this width)."
    )


def _heat_map(table: pd.DataFrame, factors: HeadWeights, folder: Path) -> Picture:
    shares = table[table["metric"] == "trace_share"]
    values = [
        shares[shares["circuit"] == c].pivot(index="layer", columns="head", values="score")
        for c in _CIRCUITS
    ]
    figure = head_maps(
        [v.to_numpy() for v in values],
        ["trace share"] * len(values),
        titles=list(_CIRCUITS.values()),
        strongest=_SHOWN,
    )
    (png,) = save(figure, folder / "figures" / "gpt2-diagonals", formats=("png",))
    return Picture(png, "Diagonal strength of both circuits of every head, with sign.")


def _crops(table: pd.DataFrame, factors: HeadWeights, circuit: str, folder: Path) -> Picture:
    top = strongest(table, circuit, "trace_share", _SHOWN)
    places = list(zip(top["layer"].tolist(), top["head"].tolist(), strict=True))
    crops = [circuit_crop(factors, layer, head, circuit) for layer, head in places]
    figure = circuit_crops(crops, [f"L{layer}H{head}" for layer, head in places])
    name = f"gpt2-{circuit.lower()}"
    (png,) = save(figure, folder / "figures" / name, formats=("png",))
    return Picture(
        png,
        f"First 100 × 100 entries of {_CIRCUITS[circuit]} of the heads with the "
        "strongest diagonals.",
    )
