"""The results of probing one model or store, as sentences, files and a page.

The page says which latents can be decoded where, in one map, and what to doubt; then follows a
sentence for each latent; all scores are folded. A probe that decodes a latent shows that it is
there, not that the model uses it: only exchanged latents show that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.figures.style import save
from interp.output import json_data, output_folder
from prooflens.pages.findings import fact_lines, in_words
from prooflens.pages.head_figures import latent_maps
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render

if TYPE_CHECKING:
    from probes.probe_table import Probing

MARKER = ".prooflens-probes"
_FLOOR = 0.9
_LEVEL = 0.01
_LEADS = 0.5
"""Least share of the way to the other row's output, beyond what random directions move it, with
which an exchanged latent is said to lead the output."""
_STILL = 0.01
"""An output that changes by less than this share of the distance between the outputs of two rows
counts as unchanged."""
_CLEAR = 0.05
"""By how much a probe's score must exceed that of a baseline to count as above it."""
_BASELINES = {
    "over_input": "the raw input",
    "selectivity": "the control task",
    "over_untrained": "random weights",
}

_COLUMNS = ("latent", "hook", "kind", "score", "null_mean", "q", "control", "input", "untrained")
_MEANING = (
    "Score is r² on held-out rows, of classes balanced accuracy with chance at 0; null_mean is the "
    "score with rows exchanged, q the false-discovery rate. Control is the score for labels that "
    "only memory could tell, input that of the raw input, untrained that of random weights: what "
    "is not above them is nothing that the model did."
)
_USED = (
    "A latent that can be read is there, which does not say that the model uses it: --interchange "
    "exchanges it between rows and sees whether the output follows."
)


def findings(found: Probing) -> list[str]:
    """Return the results of probing in sentences.

    Returns:
        A line for each latent: the first hook at which it is decodable, with its score and
        baselines, or why there is none. Then a line if hooks were left out, and one if there was no
        model with random weights to compare with. Last, for each latent that was exchanged between
        rows, a line that says how far the output moved.
    """
    lines = []
    for latent, hook, _ in found.first.itertuples(index=False):
        rows = found.table[found.table["latent"] == latent]
        where = rows["hook"] == hook if hook else rows["score"] == rows["score"].max()
        row = rows[where].iloc[0]
        lines.append(f"{latent}: {_place_in_words(row) if hook else _not_found(row)}")
    if left := found.about.get("left_out"):
        lines.append(f"not probed, since they have no position axis: {', '.join(left)}")
    if found.table["untrained"].isna().all():
        lines.append(
            "random weights: not compared with (only our own models make a fresh one; "
            "probes.probe_table.probe_table takes yours as untrained=)"
        )
    if found.interchange is not None:
        lines += [_exchange_sentence(row) for _, row in found.interchange.iterrows()]
    return lines


def _exchange_sentence(row: pd.Series[Any]) -> str:
    start = f"{row['latent']} exchanged at {row['hook']}"
    if np.isnan(row["moved"]):
        return f"{start}: cannot be told, only {row['pairs']} pairs of rows differ in it and answer"
    if row["changed"] < _STILL:
        verdict = "does not change"
    elif row["q"] > _LEVEL or row["low"] <= 0:
        verdict = "is not seen to be used for"
    else:
        alone = row["moved"] - row["placebo"] >= _LEADS
        verdict = "leads" if alone else "has a part in"
    return (
        f"{start} {verdict} the output, which moves {row['moved']:.2f} of the way to the other "
        f"row's, in random directions {row['placebo']:.2f} (difference {row['low']:.2f} to "
        f"{row['high']:.2f}, q {row['q']:.2g}, {row['pairs']} pairs), and changes by "
        f"{row['changed']:.2f}, in random directions {row['placebo_changed']:.2f}"
    )


def _place_in_words(row: pd.Series[Any]) -> str:
    absent = np.isnan(row["untrained"])
    untrained = "" if absent else f", random weights {row['untrained']:.2f}"
    return (
        f"first decodable at {row['hook']} (score {row['score']:.2f}, q {row['q']:.2g}; control "
        f"task {row['control']:.2f}, raw input {row['input']:.2f}{untrained}){_no_more(row)}"
    )


def _not_found(row: pd.Series[Any]) -> str:
    if row["kind"] == "constant":
        return "nothing to decode, it has one value at all sampled positions"
    if row["kind"] == "rare":
        return "nothing to decode, fewer than two of its classes are in enough rows"
    best = f"best score {row['score']:.2f}, at {row['hook']}"
    if row["score"] < _FLOOR:
        return f"nowhere clearly decodable ({best}, below {_FLOOR}){_no_more(row)}"
    same = row["null_std"] < 1e-9 and abs(row["score"] - row["null_mean"]) < 1e-9
    why = "it is the same in every row, so its position tells it" if same else "rows are too few"
    null = f"{row['null_mean']:.2f} with rows exchanged, q {row['q']:.2g}"
    return f"nowhere more decodable than by chance ({best}; {null}): {why}{_no_more(row)}"


def _no_more(row: pd.Series[Any]) -> str:
    """Name the baselines that decode something too and that the score is not clearly above."""
    scores = {name: row["score"] - row[over] for over, name in _BASELINES.items()}
    names = [
        f"{name} ({score:.2f})"
        for name, score in scores.items()
        if max(_CLEAR, row["score"] - _CLEAR) <= score
    ]
    return f"; not above {', '.join(names)}" if names else ""


def write_probing(found: Probing, out: Path, *, overwrite: bool) -> None:
    """Write the results of probing to a folder, completely or not at all.

    The files are ``report.html``, ``probes.csv``, ``probes.json`` and the layer × latent map; if
    latents were exchanged, also ``interchange.csv``.

    Args:
        found: The results.
        out: The folder.
        overwrite: Whether to replace an earlier folder.
    """
    with output_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        for name, table in found.tables().items():
            table.to_csv(folder / f"{name}.csv", index=False)
        tables = {"probes": json_data(found.table), "first": json_data(found.first)}
        text = json.dumps({**found.about, **tables}, indent=1)
        (folder / "probes.json").write_text(text + "\n", encoding="utf-8")
        save(latent_maps(found.table), folder / "layers")
        narrow = latent_maps(found.table, narrow=True)
        save(narrow, folder / "layers-narrow", formats=("png",))
        page = probing_page(
            folder,
            found.table,
            found.first,
            findings(found),
            about=found.about,
            exchanged=found.interchange is not None,
            clear=_CLEAR,
        )
        (folder / "report.html").write_text(page, encoding="utf-8")


def probing_page(
    folder: Path,
    table: pd.DataFrame,
    first: pd.DataFrame,
    lines: Sequence[str],
    *,
    about: dict[str, Any],
    exchanged: bool,
    clear: float,
) -> str:
    """Render the page as one self-contained HTML file.

    Args:
        folder: The folder with the figures.
        table: A table from :func:`probes.probe_table.probe_table`.
        first: The first hook at which each latent is decodable.
        lines: A sentence for each latent, and for what was left out.
        about: What was probed, as JSON data.
        exchanged: Whether latents were exchanged.
        clear: By how much a score must exceed a baseline to be clearly above it.
    """
    best = _best(table, first)
    sections = [
        Section("Latent by latent", list(lines)),
        Section("Every score", [_MEANING], (), [_scores(table)], folded=True),
    ]
    name = page_name(str(about.get("model") or about.get("store") or "a store"))
    wide, narrow = folder / "layers.png", folder / "layers-narrow.png"
    picture = Picture(wide, _caption(table), narrow=narrow, told=_best_in_words(best))
    facts = fact_lines(about, leave=("hooks",))
    doubts = list(_doubts(best, exchanged, clear))
    return render(
        Page(f"What can be read from {name}", _readable(best), sections, facts, picture, doubts)
    )


def _best(table: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """Return one row per latent: that of the first hook at which it is decodable, or of its largest
    score; the column ``found`` says which."""
    rows = []
    for latent, hook, _ in first.itertuples(index=False):
        mine = table[table["latent"] == latent]
        at = mine[mine["hook"] == hook] if hook else mine.sort_values("score", ascending=False)
        rows.append(at.iloc[0].to_dict() | {"found": bool(hook)})
    return pd.DataFrame(rows)


def _readable(best: pd.DataFrame) -> list[str]:
    """Say which latents are first decodable where, and which nowhere."""
    said = []
    for hook, rows in best[best["found"]].groupby("hook", sort=False):
        low, high = f"{rows['score'].min():.2f}", f"{rows['score'].max():.2f}"
        scores = low if low == high else f"{low} to {high}"
        latents = in_words(list(rows["latent"]))
        said.append(f"{latents} can first be read at {hook}: score {scores}.")
    nowhere = best[~best["found"]]
    if len(nowhere):
        latents, scored = in_words(list(nowhere["latent"])), nowhere.dropna(subset="score")
        reached = f"; the best score is {scored['score'].max():.2f}" if len(scored) else ""
        said.append(f"{latents} cannot be read anywhere{reached}.")
    return said


def _doubts(best: pd.DataFrame, exchanged: bool, clear: float) -> Iterator[str]:
    found = best[best["found"]]
    for column, words in (("input", "the raw input"), ("untrained", "a model of random weights")):
        alike = found[found["score"] - found[column] < clear]
        if len(alike):
            yield f"{in_words(list(alike['latent']))} can be read from {words} as well."
    if len(found):
        least = found.sort_values("score").iloc[0]
        yield (
            f"The lowest score that counts as readable is {least['score']:.2f} "
            f"({least['latent']}), on the rows of one seed."
        )
    if not exchanged:
        yield _USED


def _caption(table: pd.DataFrame) -> str:
    hooks, latents = table["hook"].nunique(), table["latent"].nunique()
    clear = int((table["q"] < _LEVEL).sum())
    return (
        f"Score and selectivity of {latents} latents at {hooks} hooks: {clear} of {len(table)} "
        f"scores are above chance (q < {_LEVEL})."
    )


def _best_in_words(best: pd.DataFrame) -> str:
    return "; ".join(f"{r.latent} {r.score:.2f} at {r.hook}" for r in best.itertuples()) + "."


def _scores(table: pd.DataFrame) -> PageTable:
    shown = table[[name for name in _COLUMNS if name in table]].reset_index(drop=True)
    return PageTable(shown, f"{len(shown)} scores", sortable=True)
