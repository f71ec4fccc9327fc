"""What a model's weights alone show, as files: tables, figures and a few sentences.

``write_page`` fills a folder with ``report.html`` (one page of it all), ``weights.csv`` (one row
per head, circuit and metric), ``compositions.csv`` (one row per pair of heads),
``singular_values.csv``, ``weights.json`` (all heads, the strongest pairs, the findings and where
they come from), ``findings.txt`` and figures as PNG (the diagonals also as SVG). The folder is
written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.environment import ENVIRONMENT, environment_json
from interp.figures.lines import Pair, pair_lines
from interp.figures.maps import circuit_crops
from interp.figures.style import save
from interp.output import json_data, output_file, output_folder
from interp.stats.head_table import COLUMNS
from interp.weights.metric_names import CLEAR_EXCESS, COMPOSITIONS, SINGULAR
from prooflens.pages.behaviour_figures import head_map, histogram, places
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render

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
"""Ending of the file name of a figure that is laid out for a narrow screen."""
_TELLING = ("trace_share", "diag_ratio", "copying_score", "effective_rank")
_CROPS, _NAMED = 8, 3
_GROUPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "The sign and size of the diagonal",
        ("trace_share", "identity_coefficient"),
        "trace_share is the sum of the diagonal over √n ‖M‖, so that heads compare; "
        "identity_coefficient is the sum over n, the multiple a of I nearest to M.",
    ),
    (
        "The diagonal against the rest",
        ("diag_ratio",),
        "diag_ratio is the RMS of the diagonal over the RMS off it, whatever the signs.",
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

    First come the findings, the strongest diagonals and what to doubt, then a table of the heads
    with the strongest diagonals; the other figures are folded by what they measure.

    Args:
        folder: The folder with the figures.
        model: The model's name.
        table: A table from :func:`interp.weights.weight_table.weight_table`.
        findings: Sentences for the top of the page.
        facts: Sizes, options and notes, for its end.
    """
    crops, sections = _diagonals(folder, table), [*_strongest(table)]
    if crops[1:]:
        title = "Strongest diagonals of the other circuits"
        words = ["Corners of the circuits themselves; the number is the trace share."]
        sections.append(Section(title, words, crops[1:], folded=True))
    sections += [*_pair_sections(folder, table), *_measurements(folder, table)]
    sections.append(Section("Table of all heads", (), (), [_heads(table)], folded=True))
    first = crops[0] if crops else None
    return render(Page(f"Weights of {page_name(model)}", findings, sections, facts, first, _DOUBTS))


def _diagonals(folder: Path, table: pd.DataFrame) -> list[Picture]:
    """Return pictures of corners of circuits, those of QK first."""
    paths = sorted(p for p in folder.glob("diagonals-*.png") if not p.stem.endswith(NARROW))
    paths.sort(key=lambda path: path.stem != "diagonals-QK")
    return [
        replace(picture, narrow=narrow if narrow.is_file() else None)
        for picture in _pictures(paths, table)
        for narrow in [picture.path.with_stem(picture.path.stem + NARROW)]
    ]


def _strongest(table: pd.DataFrame) -> Iterator[Section]:
    """Yield a section for each circuit with the heads of the largest |trace share|, and their main
    numbers."""
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
    yield Section("The heads that stand out", (), (), [PageTable(told, caption, sortable=True)])


def _heads(table: pd.DataFrame) -> PageTable:
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
    return PageTable(wide, told, sortable=True)


def _pair_sections(folder: Path, table: pd.DataFrame) -> Iterator[Section]:
    pairs = table[table["metric"].isin(COMPOSITIONS)].nlargest(30, "effect")
    if len(pairs):
        pairs = pairs[["metric", "target", "layer", "head", "score", "null_mean", "q"]]
        told = "The thirty largest of all pairs: the target wrote what the head reads."
        lines = _pictures(sorted(folder.glob("pairs-*.png")), table)
        yield Section("Who reads whom", (), lines, [PageTable(pairs, told)], folded=True)


def _measurements(folder: Path, table: pd.DataFrame) -> Iterator[Section]:
    """Yield folded sections of maps and histograms, one for each kind of measurement."""
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
    """Return the caption of a figure, with its largest numbers."""
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


_FIRST = ("layer", "head", "circuit", "metric", "score", "null_mean", "null_std", "p", "q")
CSV_COLUMNS = (*_FIRST, *(name for name in COLUMNS if name not in _FIRST))
Watch = Callable[[Sequence[Any]], Iterable[Any]]
"""A function that passes on the items that it gets, and may show progress meanwhile."""

_PAIRS = 24
_FLOOR = 0.05  # least |trace share| called a diagonal: forty null deviations at width 768
_LEVEL = 0.01  # of q: what is named is above the null
CLEAR = f"|trace share| at least {_FLOOR}, q < {_LEVEL}"
"""In words, when the diagonal of a circuit counts as clear."""
_UNTIED = (
    "Signs are of residual directions, not of tokens: embedding and unembedding are two matrices "
    "here, so a head that writes the negative of a direction may raise the token it read. "
    "--basis token asks about tokens."
)
_UNITS = {
    "diag_ratio": "RMS on / RMS off the diagonal",
    "effective_rank": "effective rank (dimensions)",
}


@dataclass(frozen=True)
class WeightTable:
    """A table of weight metrics, with what a page says about its model.

    Attributes:
        table: The table, from :func:`interp.weights.weight_table.weight_table`.
        about: JSON data: ``model``, ``family``, ``sizes``, ``options`` (fold_norm, lag and basis
            with which the table was made), ``analysed`` and ``notes``.
        tied: Whether W_U = W_Eᵀ.
        heads: The number of heads in each layer.
        crops: (circuit, layer, head) → the corner of the circuit that is drawn.
    """

    table: pd.DataFrame
    about: dict[str, Any]
    tied: bool = True
    heads: Sequence[int] = ()
    crops: Mapping[tuple[str, int, int], NDArray[np.float32]] = field(default_factory=dict)

    def findings(self, n: int = 5) -> list[str]:
        """Return the main findings, with ``n`` heads or pairs per list; see :func:`findings`."""
        return [*self.diagonals(n), *_compositions(self.table, n)]

    def diagonals(self, n: int = 5) -> list[str]:
        """Return the findings about single heads."""
        heads = self.table[~self.table["metric"].isin(COMPOSITIONS)]
        basis = self.about["options"].get("basis", "residual")
        return findings(heads, n, basis=basis, tied=self.tied)


def drawn_heads(table: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Return circuit, layer and head of the diagonals that a page draws."""
    own = table[_is_scored(table)]
    tops = {c: strongest(own, c, "trace_share", _CROPS) for c in own["circuit"].unique()}
    return [(c, layer, head) for c, top in tops.items() for layer, head in _places(top)]


def _places(rows: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(rows["layer"].tolist(), rows["head"].tolist(), strict=True))


def _is_scored(table: pd.DataFrame) -> pd.Series:
    """Return which rows are about single heads, with a metric that some head has."""
    counted = table.groupby(["circuit", "metric"])["score"].transform("count") > 0
    return counted & ~table["metric"].isin((*COMPOSITIONS, SINGULAR))


def strongest(
    table: pd.DataFrame, circuit: str, metric: str, n: int, *, sign: int = 0
) -> pd.DataFrame:
    """Return the ``n`` heads with the largest score (sign 1), the smallest (−1) or the largest
    |score| (0)."""
    chosen = table[(table["circuit"] == circuit) & (table["metric"] == metric)]
    key = chosen["score"].abs() if sign == 0 else sign * chosen["score"]
    chosen = chosen.assign(_key=key)
    if sign:
        chosen = chosen[chosen["_key"] > 0]
    order = chosen.sort_values(["_key", "layer", "head"], ascending=[False, True, True])
    return order.drop(columns="_key").head(n)


def findings(
    table: pd.DataFrame, n: int = 5, *, basis: str = "residual", tied: bool = True
) -> list[str]:
    """Describe, in sentences, the heads and pairs of heads that stand out in a table of weights.

    Single heads are named for a |trace share| of at least 0.05, pairs for a composition score of at
    least 1.5 times its mean for random directions; both need q < 0.01.

    Args:
        table: A table from :func:`interp.weights.weight_table.weight_table`.
        n: How many heads or pairs are named in each list.
        basis: The basis in which the table was made, ``residual`` or ``token``.
        tied: Whether W_U = W_Eᵀ. If not, the sign of a trace share in the residual basis does not
            tell whether a head raises or lowers the token it reads, and a sentence says so.

    Returns:
        The sentences.
    """
    said: list[str] = []
    shares = table[table["metric"] == "trace_share"]
    for circuit, *meanings in _meanings(basis, tied):
        mine = shares[shares["circuit"] == circuit]
        if mine.empty:
            continue
        clear = clear_diagonals(mine)
        said.append(
            f"{circuit}: {len(clear)} of {len(mine)} heads have a clear diagonal "
            f"({CLEAR}): {int((clear['score'] > 0).sum())} positive, "
            f"{int((clear['score'] < 0).sum())} negative."
            + ("" if (mine["q"] < _LEVEL).any() else " None is above the null.")
        )
        for sign, meaning in zip((1, -1), meanings, strict=True):
            top = strongest(clear, circuit, "trace_share", n, sign=sign)
            if len(top):
                said.append(f"{circuit} that would {meaning}: {_list_heads(top)}.")
    if basis == "residual" and not tied and len(shares):
        said.append(_UNTIED)
    return [*said, *_compositions(table, n)]


def clear_diagonals(shares: pd.DataFrame) -> pd.DataFrame:
    """Return the trace shares that are above the null and the floor (:data:`CLEAR`)."""
    return shares[(shares["q"] < _LEVEL) & (shares["score"].abs() >= _FLOOR)]


def _compositions(table: pd.DataFrame, n: int) -> list[str]:
    pairs = ((kind, table[table["metric"] == kind]) for kind in COMPOSITIONS)
    return [
        f"Strongest {kind.replace('_', '-')}: {_pairs(rows, n)}."
        for kind, rows in pairs
        if len(rows)
    ]


def _meanings(basis: str, tied: bool) -> tuple[tuple[str, str, str], ...]:
    """Return, for each circuit, what a positive diagonal does and what a negative one does."""
    if basis == "token":
        return (
            ("QK", "attend from a token to itself (symbol equality)", "attend away from it"),
            ("OV", "raise the token they read (copying)", "lower it (anti-copying)"),
        )
    if tied:
        return (
            ("QK", "attend from a direction to itself (symbol equality)", "attend away from it"),
            ("OV", "copy what they read (copying)", "write its negative (anti-copying)"),
        )
    return (
        ("QK", "attend from a residual direction to itself", "attend away from it"),
        ("OV", "write the residual direction they read", "write its negative"),
    )


def _pairs(pairs: pd.DataFrame, n: int) -> str:
    above = pairs["score"] >= (1 + CLEAR_EXCESS) * pairs["null_mean"]
    top = pairs[above & (pairs["q"] < _LEVEL)].nlargest(n, "effect")
    listed = (
        f"{r.target} → L{r.layer}H{r.head} ({r.score:.3f}, null {r.null_mean:.3f})"
        for r in top.itertuples()
    )
    return ", ".join(listed) or (
        f"none of {len(pairs)} pairs is {1 + CLEAR_EXCESS:g} times that of random directions "
        f"(q < {_LEVEL})"
    )


def _list_heads(rows: pd.DataFrame) -> str:
    return ", ".join(f"L{r.layer}H{r.head} ({r.score:+.3f})" for r in rows.itertuples())


def write_table(
    table: pd.DataFrame, path: Path, *, overwrite: bool, columns: Sequence[str] = CSV_COLUMNS
) -> None:
    """Write a table as CSV, and the versions it was made with to ``NAME.environment.json`` beside
    it.

    Raises:
        OutputError: if a file exists and may not be replaced, or cannot be written.
    """
    beside = path.with_suffix(f".{ENVIRONMENT}")
    with (
        output_file(beside, overwrite=overwrite) as told,
        output_file(path, overwrite=overwrite) as draft,
    ):
        told.write_text(environment_json())
        table[list(columns)].to_csv(draft, index=False)


def write_page(given: WeightTable, folder: Path, *, overwrite: bool, watch: Watch = iter) -> None:
    """Write everything about the model's weights into one folder.

    Args:
        given: The table, with what a page says about its model.
        folder: The folder.
        overwrite: Whether to replace an existing folder of such a page.
        watch: A wrapper around the loop over figures, for a progress bar.

    Raises:
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    with output_folder(folder, overwrite=overwrite, marker=".prooflens-weights") as draft:
        _write_tables(given, draft)
        _write_figures(given, draft, watch)
        _write_html(given, draft)


def _write_tables(given: WeightTable, folder: Path) -> None:
    table, said = given.table, given.findings()
    pairs, spectrum = table["metric"].isin(COMPOSITIONS), table["metric"] == SINGULAR
    for name, rows in (
        ("weights.csv", table[~pairs & ~spectrum]),
        ("compositions.csv", table[pairs]),
        ("singular_values.csv", table[spectrum]),
    ):
        if len(rows):
            rows[list(CSV_COLUMNS)].to_csv(folder / name, index=False)
    (folder / "findings.txt").write_text("\n".join(said) + "\n", encoding="utf-8")
    heads = table[~pairs & ~spectrum]
    about = given.about | {
        "findings": said,
        "heads": _records(heads),
        "compositions": _records(table[pairs].astype({"effect": float}).nlargest(100, "effect")),
    }
    text = json.dumps(about, indent=1, allow_nan=False)
    (folder / "weights.json").write_text(text + "\n", encoding="utf-8")


def _write_html(given: WeightTable, folder: Path) -> None:
    about = given.about
    facts = [
        f"{about['family']}: {_options_text(about['sizes'])}",
        f"options: {_options_text(about['options'])}",
        *([f"What is analysed: {about['analysed']}."] if about["analysed"] else []),
        *about["notes"],
    ]
    said = given.diagonals() or given.findings()
    page = weights_page(folder, Path(about["model"]).name, given.table, said, facts)
    (folder / "report.html").write_text(page, encoding="utf-8")


def _options_text(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON data."""
    records: list[dict[str, Any]] = json_data(rows[[*_FIRST, "effect", "target", "null", "draws"]])
    return records


def _write_figures(given: WeightTable, folder: Path, watch: Watch) -> None:
    table = given.table[_is_scored(given.table)]
    for kind, pairs in given.table.groupby("metric", sort=False):
        if kind in COMPOSITIONS:
            _write_pairs(given.heads, str(kind), pairs, folder)
    for circuit in table["circuit"].unique():
        top = strongest(table, circuit, "trace_share", _CROPS)
        if len(top):
            path = folder / f"diagonals-{_file(circuit)}"
            save(_crops(given, circuit, top), path)
            narrow = _crops(given, circuit, top, columns=2)
            save(narrow, path.with_name(path.name + NARROW), formats=("png",))
    for metric, rows in watch(list(table.groupby("metric", sort=False))):
        label = _UNITS.get(metric, metric.replace("_", " "))
        panels = [(f"{c}: {metric}", part) for c, part in rows.groupby("circuit", sort=False)]
        drawn = head_map(label, panels, *places(rows))
        save(drawn, folder / f"map-{metric}", formats=("png",))
        known = [(title, part) for title, part in panels if part["null_std"].gt(0).any()]
        if known:
            save(histogram(label, known), folder / f"histogram-{metric}", formats=("png",))


def _write_pairs(heads: Sequence[int], kind: str, rows: pd.DataFrame, folder: Path) -> None:
    strong: Iterable[Any] = rows.astype({"effect": float}).nlargest(_PAIRS, "effect").itertuples()
    pairs: list[Pair] = []
    for r in strong:
        layer, head = map(int, r.target[1:].split("H"))
        pairs.append(((layer, head), (r.layer, r.head), r.score))
    label = kind.replace("_", " ").capitalize()
    title = f"{label}: {len(pairs)} largest above the null"
    drawn = pair_lines(list(heads), pairs, label, title=title)
    save(drawn, folder / f"pairs-{kind}", formats=("png",))


def _file(circuit: str) -> str:
    return circuit.replace("+", "-")


def _crops(given: WeightTable, circuit: str, top: pd.DataFrame, *, columns: int = 4) -> Any:
    crops = [given.crops[circuit, layer, head] for layer, head in _places(top)]
    titles = [f"L{r.layer}H{r.head}: {r.score:+.3f}" for r in top.itertuples()]
    title = f"{circuit} of {Path(given.about['model']).name}: largest |trace share|"
    return circuit_crops(crops, titles, columns=columns, title=title)
