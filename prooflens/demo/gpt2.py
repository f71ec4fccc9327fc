"""Diagonal circuits of a language model's heads in the demo's report, from the weights alone.

The model is GPT-2 where it is at hand, otherwise the shipped language model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from interp.errors import CheckpointError
from interp.figures.diagonals import circuit_crops, head_maps
from interp.figures.style import save
from interp.weights.head_weights import HeadWeights
from interp.weights.weight_table import circuit_crop, weight_table
from prooflens.pages.page import Picture, Section, Table
from prooflens.pages.weights import strongest

__all__ = ["Diagonals", "diagonals"]

_SHOWN, _LISTED = 4, 8
_CIRCUITS = {"QK": "W_K W_Qᵀ", "OV": "W_V W_Oᵀ"}


@dataclass(frozen=True)
class Diagonals:
    """The results of reading the weights.

    Attributes:
        table: A head table of both circuits of every head.
        finding: The main finding, in a sentence.
        section: The section of the report.
        file: What its files begin with.
    """

    table: pd.DataFrame
    finding: str
    section: Section
    file: str


def diagonals(factors: HeadWeights, folder: Path, name: str = "GPT-2") -> Diagonals:
    """Score the diagonals of every head's circuits and draw the strongest.

    Args:
        factors: The heads' weights.
        folder: The report's folder.
        name: What the model is called in the report.

    Raises:
        CheckpointError: if the model's heads have no QK circuit.
    """
    if any("QK" not in layer.circuits for layer in factors):
        raise CheckpointError(f"{factors.name} is no GPT-2: it has heads without a QK circuit")
    file = name.lower().replace("gpt-2", "gpt2")
    table = weight_table(factors, ["basic"])
    figures = (
        _heat_map(table, folder / "figures", file),
        *(_crops(table, factors, circuit, folder / "figures", file) for circuit in _CIRCUITS),
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
    section = Section(f"{name}: heads with diagonal circuits", words, figures, tables, folded=True)
    ceiling = (factors.d_head / factors.d_model) ** 0.5
    return Diagonals(table, _finding(table, name, heads, ceiling), section, file)


def _finding(table: pd.DataFrame, name: str, heads: int, ceiling: float) -> str:
    parts = []
    for circuit, formula in _CIRCUITS.items():
        parts.append(f"{formula} {_listed(table, circuit, 3)}")
    return (
        f"Of {name}'s {heads} heads, the circuits nearest a multiple of the identity are "
        + " and ".join(parts)
        + f" (trace share, at most {ceiling:.3f} for heads of this width)."
    )


def _listed(table: pd.DataFrame, circuit: str, count: int = _SHOWN) -> str:
    """The heads of the largest |trace share|, with it."""
    top = strongest(table, circuit, "trace_share", count)
    return ", ".join(f"L{r.layer}H{r.head} ({r.score:+.2f})" for r in top.itertuples())


def _heat_map(table: pd.DataFrame, folder: Path, file: str) -> Picture:
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
    (png,) = save(figure, folder / f"{file}-diagonals", formats=("png",))
    told = "; ".join(f"{words}: {_listed(table, c)}" for c, words in _CIRCUITS.items())
    return Picture(png, f"Trace share of both circuits of every head, with sign. {told}.")


def _crops(
    table: pd.DataFrame, factors: HeadWeights, circuit: str, folder: Path, file: str
) -> Picture:
    top = strongest(table, circuit, "trace_share", _SHOWN)
    places = list(zip(top["layer"].tolist(), top["head"].tolist(), strict=True))
    crops = [circuit_crop(factors, layer, head, circuit) for layer, head in places]
    figure = circuit_crops(crops, [f"L{layer}H{head}" for layer, head in places])
    (png,) = save(figure, folder / f"{file}-{circuit.lower()}", formats=("png",))
    return Picture(
        png,
        f"First 100 × 100 entries of {_CIRCUITS[circuit]} of the heads with the "
        f"strongest diagonals: {_listed(table, circuit)} (trace share).",
    )
