"""The page of a weight inspection: main findings, the strongest diagonals, every head."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from analyses.report.page import Page, Picture, Section, Table, render
from interp.weights.composition import COMPOSITIONS
from interp.weights.weight_table import SINGULAR

__all__ = ["weights_page"]

_NULL = (
    "The null keeps a head's singular values and turns its two bases at random. Nearly every "
    "trained head differs from it: rank by effect, not by q. A diagonal is a property of weights; "
    "what a head does on text is for its patterns and ablations to say."
)


def weights_page(
    folder: Path, model: str, table: pd.DataFrame, findings: list[str], facts: list[str]
) -> str:
    """Render the page as one self-contained HTML file.

    Args:
        folder: the folder with the figures.
        model: the name of the model.
        table: the table, from :func:`interp.weights.weight_table.weight_table`.
        findings: sentences for the top of the page.
        facts: sizes, options and notes for the end of the page.
    """
    heads = table[~table["metric"].isin((*COMPOSITIONS, SINGULAR))]
    wide = heads.pivot(index=["circuit", "layer", "head"], columns="metric", values="score")
    wide = wide[list(heads["metric"].unique())].reset_index()
    wide.insert(1, "name", [f"L{r.layer}H{r.head}" for r in wide.itertuples()])
    if "trace_share" in wide:
        order = wide["trace_share"].abs().sort_values(ascending=False, kind="stable").index
        wide = wide.loc[order]
    sections = [
        Section(
            "Strongest diagonals",
            ["Corners of the circuits themselves; the number is the trace share."],
            _pictures(sorted(folder.glob("diagonals-*.png"))),
        ),
        Section("Every head", (), _pictures(sorted(folder.glob("map-*.png")))),
        Section("Against the null", [_NULL], _pictures(sorted(folder.glob("histogram-*.png")))),
        Section(
            "Table of all heads",
            (),
            (),
            [
                Table(
                    wide,
                    "Scores; weights.csv has their nulls, p and q. Ordered by |trace share|; click "
                    "a heading (or Tab and Enter) to sort.",
                    sortable=True,
                )
            ],
        ),
    ]
    pairs = table[table["metric"].isin(COMPOSITIONS)].nlargest(30, "effect")
    if len(pairs):
        pairs = pairs[["metric", "target", "layer", "head", "score", "null_mean", "q"]]
        told = "The thirty largest of all pairs: the target wrote what the head reads."
        lines = _pictures(sorted(folder.glob("pairs-*.png")))
        sections.insert(1, Section("Who reads whom", (), lines, [Table(pairs, told)]))
    return render(Page(f"Weights of {model}", findings, sections, facts))


def _pictures(paths: Iterable[Path]) -> list[Picture]:
    return [Picture(path, path.stem.replace("-", " ").replace("_", " ")) for path in paths]
