"""The page of a weight inspection: what stands out, the strongest diagonals, every head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from interp.weights.composition import COMPOSITIONS
from interp.weights.weight_table import SINGULAR
from prooflens.pages.naming import page_name
from prooflens.pages.page import Page, Picture, Section, Table, render

__all__ = ["NARROW", "weights_page"]

_NULL = (
    "The null keeps a head's singular values and turns its two bases at random. Nearly every "
    "trained head differs from it: rank by effect, not by q."
)
_DOUBT = (
    "A diagonal is a property of weights: what a head does on text is for its patterns and "
    "ablations to say (prooflens inspect). In the residual basis it speaks of "
    "directions, not of tokens."
)
_ALONE = (
    "A weight-only number is the same for a head that is never used: none of these says that the "
    "model depends on it."
)
_DOUBTS = (_DOUBT, _ALONE)
NARROW = "-narrow"
"""Ends the name of a figure whose panels are for a narrow screen."""
_TELLING = ("trace_share", "diag_ratio", "copying_score", "effective_rank")
_CROPS, _NAMED, _LEVEL = 8, 3, 0.01
_GROUPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "The sign and size of the diagonal",
        ("trace_share", "trace", "identity_coefficient", "identity_energy"),
        "Four ways to say one number. trace is the sum of the diagonal; trace_share divides it by "
        "√n ‖M‖, so that heads compare; identity_coefficient is trace / n, the multiple a of I "
        "nearest to M; identity_energy = trace_share² is the share of M that a·I explains.",
    ),
    (
        "The diagonal against the rest",
        ("diag_ratio", "diag_mean", "diag_std", "offdiag_mean", "offdiag_std", "diag_contrast"),
        "diag_ratio is the RMS of the diagonal over the RMS off it, whatever the signs; "
        "diag_contrast the difference of the two means in standard deviations off the diagonal.",
    ),
    (
        "Copying and symmetry",
        ("copying_score", "symmetric_share"),
        "copying_score is Σ Re λ / Σ |λ| over the eigenvalues, 1 where all are positive; "
        "symmetric_share the energy of the symmetric part.",
    ),
    (
        "Size and rank",
        ("frobenius_norm", "spectral_norm", "spectral_share", "effective_rank"),
        "How large M is, how much of it is its first singular direction, and over how many "
        "directions it spreads.",
    ),
    (
        "The query's bias",
        ("key_bias_energy",),
        "The share of a score's variance that does not depend on the query.",
    ),
)


def weights_page(
    folder: Path, model: str, table: pd.DataFrame, findings: list[str], facts: list[str]
) -> str:
    """Render the page as one self-contained HTML file.

    First what stands out, the strongest diagonals and what to doubt, then the heads with the
    strongest diagonals as a table; the other figures are folded by what they measure, each meaning
    said once.

    Args:
        folder: where the figures are.
        model: what was inspected.
        table: from :func:`interp.weights.weight_table.weight_table`.
        findings: sentences for the top of the page.
        facts: sizes, options and notes, for its end.
    """
    crops, sections = _diagonals(folder, table), [*_strongest(table)]
    if crops[1:]:
        title = "Strongest diagonals of the other circuits"
        words = ["Corners of the circuits themselves; the number is the trace share."]
        sections.append(Section(title, words, crops[1:], folded=True))
    sections += [*_pairs(folder, table), *_measured(folder, table)]
    sections.append(Section("Table of all heads", (), (), [_heads(table)], folded=True))
    first = crops[0] if crops else None
    return render(Page(f"Weights of {page_name(model)}", findings, sections, facts, first, _DOUBTS))


def _diagonals(folder: Path, table: pd.DataFrame) -> list[Picture]:
    """Corners of circuits, those of QK first."""
    paths = sorted(p for p in folder.glob("diagonals-*.png") if not p.stem.endswith(NARROW))
    paths.sort(key=lambda path: path.stem != "diagonals-QK")
    return [
        replace(picture, narrow=narrow if narrow.is_file() else None)
        for picture in _pictures(paths, table)
        for narrow in [picture.path.with_stem(picture.path.stem + NARROW)]
    ]


def _strongest(table: pd.DataFrame) -> Iterator[Section]:
    """The heads of the largest |trace share| of each circuit, with the numbers that tell most."""
    heads = table[table["metric"].isin(_TELLING)]
    if not len(heads):
        return
    wide = heads.pivot(index=["circuit", "layer", "head"], columns="metric", values="score")
    wide = wide[[name for name in _TELLING if name in wide]].reset_index()
    if "trace_share" not in wide:
        return
    shares = table[table["metric"] == "trace_share"]
    known = shares[["circuit", "layer", "head", "null_std", "q"]]
    wide = wide.merge(known, on=["circuit", "layer", "head"])
    wide["size"] = wide["trace_share"].abs()
    top = wide.sort_values("size", ascending=False, kind="stable").groupby("circuit", sort=False)
    told = top.head(_CROPS).sort_values(["circuit", "size"], ascending=[False, False])
    told.insert(1, "name", [f"L{r.layer}H{r.head}" for r in told.itertuples()])
    told = told.drop(columns=["layer", "head", "size"])
    caption = (
        f"The {_CROPS} heads of each circuit with the largest |trace share|; null_std is what "
        "random bases spread by, q the false-discovery rate."
    )
    yield Section("The heads that stand out", (), (), [Table(told, caption, sortable=True)])


def _heads(table: pd.DataFrame) -> Table:
    heads = table[~table["metric"].isin((*COMPOSITIONS, SINGULAR))]
    wide = heads.pivot(index=["circuit", "layer", "head"], columns="metric", values="score")
    wide = wide[list(heads["metric"].unique())].reset_index()
    wide.insert(1, "name", [f"L{r.layer}H{r.head}" for r in wide.itertuples()])
    if "trace_share" in wide:
        order = wide["trace_share"].abs().sort_values(ascending=False, kind="stable").index
        wide = wide.loc[order]
    told = (
        "Scores; weights.csv has their nulls, p and q. Ordered by |trace share|; click a heading "
        "(or Tab and Enter) to sort."
    )
    return Table(wide, told, sortable=True)


def _pairs(folder: Path, table: pd.DataFrame) -> Iterator[Section]:
    pairs = table[table["metric"].isin(COMPOSITIONS)].nlargest(30, "effect")
    if len(pairs):
        pairs = pairs[["metric", "target", "layer", "head", "score", "null_mean", "q"]]
        told = "The thirty largest of all pairs: the target wrote what the head reads."
        lines = _pictures(sorted(folder.glob("pairs-*.png")), table)
        yield Section("Who reads whom", (), lines, [Table(pairs, told)], folded=True)


def _measured(folder: Path, table: pd.DataFrame) -> Iterator[Section]:
    """Maps and histograms of every metric, folded by what they measure."""
    known = {metric for _, metrics, _ in _GROUPS for metric in metrics}
    drawn = [path.stem.removeprefix("map-") for path in sorted(folder.glob("map-*.png"))]
    others = tuple(metric for metric in drawn if metric not in known)
    for title, metrics, words in (*_GROUPS, ("Other metrics", others, "")):
        names = [f"{kind}-{metric}.png" for metric in metrics for kind in ("map", "histogram")]
        pictures = _pictures((folder / n for n in names if (folder / n).is_file()), table)
        if pictures:
            yield Section(title, [words, _NULL] if words else [_NULL], pictures, folded=True)


def _pictures(paths: Iterable[Path], table: pd.DataFrame) -> list[Picture]:
    return [Picture(path, _caption(path.stem, table)) for path in paths]


def _caption(stem: str, table: pd.DataFrame) -> str:
    """What a figure shows, with its largest numbers."""
    kind, _, rest = stem.partition("-")
    if kind == "diagonals":
        own = table[
            (table["metric"] == "trace_share") & (table["circuit"] == rest.replace("-", "+"))
        ]
        return f"{rest} circuits with the largest |trace share|: {_largest(own, _CROPS)}."
    own = table[table["metric"] == rest]
    name = rest.replace("_", " ")
    if kind == "pairs":
        top = own.nlargest(_NAMED, "effect").itertuples()
        told = ", ".join(f"{r.target} → L{r.layer}H{r.head} {r.score:.3f}" for r in top)
        return f"{name}, the largest above the null: {told}."
    circuits = ((str(c), rows) for c, rows in own.groupby("circuit", sort=False))
    if kind == "histogram":
        beyond = (f"{c}: {int((rows['q'] < _LEVEL).sum())} of {len(rows)}" for c, rows in circuits)
        return f"{name} of all heads beside the null; with q < {_LEVEL} {'; '.join(beyond)}."
    named = "; ".join(f"{c} {_largest(rows, _NAMED)}" for c, rows in circuits)
    return f"{name} of every head; largest in size: {named}."


def _largest(rows: pd.DataFrame, count: int) -> str:
    order = rows["score"].abs().sort_values(ascending=False, kind="stable").index[:count]
    top = rows.loc[order].itertuples()
    return ", ".join(f"L{r.layer}H{r.head} {r.score:+.3g}" for r in top)
