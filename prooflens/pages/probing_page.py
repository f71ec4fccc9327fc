"""The page of probes: what can be read where, one map, and what to doubt.

Then each latent in a sentence; every score is folded. A probe that finds a latent says that it is
there, not that the model uses it: only exchanged latents say that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prooflens.pages.findings import in_words, told_facts
from prooflens.pages.naming import page_name
from prooflens.pages.page import Page, Picture, Section, Table, render

__all__ = ["probing_page"]

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


def probing_page(
    folder: Path,
    table: pd.DataFrame,
    first: pd.DataFrame,
    lines: Sequence[str],
    *,
    about: dict[str, Any],
    curves: pd.DataFrame | None,
    exchanged: bool,
    clear: float,
) -> str:
    """Render the page as one self-contained HTML file.

    Args:
        folder: Where the figures are.
        table: Of :func:`probes.probe_table.probe_table`.
        first: Where each latent can first be read.
        lines: A sentence a latent, and what was left out.
        about: What was probed.
        curves: Scores against rows that were learned from, if they were asked for.
        exchanged: Whether latents were exchanged.
        clear: By how much a score must exceed a baseline to be clearly above it.
    """
    best = _best(table, first)
    sections = [
        Section("Latent by latent", list(lines)),
        Section("Learning curves", (), list(_curves(folder, curves)), folded=True),
        Section("Every score", [_MEANING], (), [_scores(table)], folded=True),
    ]
    kept = [section for section in sections if section.words or section.pictures]
    name = page_name(str(about.get("model") or about.get("store") or "a store"))
    wide, narrow = folder / "layers.png", folder / "layers-narrow.png"
    picture = Picture(wide, _caption(table), narrow=narrow, told=_told(best))
    facts = told_facts(about, leave=("hooks",))
    doubts = list(_doubts(best, exchanged, clear))
    return render(Page(f"What can be read from {name}", _found(best), kept, facts, picture, doubts))


def _best(table: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """A row a latent: where it can first be read, or where its score is largest; ``found``."""
    rows = []
    for latent, hook, _ in first.itertuples(index=False):
        mine = table[table["latent"] == latent]
        at = mine[mine["hook"] == hook] if hook else mine.sort_values("score", ascending=False)
        rows.append(at.iloc[0].to_dict() | {"found": bool(hook)})
    return pd.DataFrame(rows)


def _found(best: pd.DataFrame) -> list[str]:
    """Which latents can first be read where, and which nowhere."""
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


_LEVEL = 0.01


def _told(best: pd.DataFrame) -> str:
    return "; ".join(f"{r.latent} {r.score:.2f} at {r.hook}" for r in best.itertuples()) + "."


def _curves(folder: Path, curves: pd.DataFrame | None) -> Iterator[Picture]:
    if curves is None or curves.empty:
        return
    medians = curves.groupby(["latent", "rows"], sort=False)["score"].median()
    told = [
        f"{latent} {scores.iloc[0]:.2f} from {scores.index[0][1]} rows, {scores.iloc[-1]:.2f} from "
        f"{scores.index[-1][1]}"
        for latent, scores in medians.groupby("latent", sort=False)
    ]
    words = "Score on other rows against rows learned from"
    yield Picture(folder / "curves.png", f"{words}: {'; '.join(told)}.")


def _scores(table: pd.DataFrame) -> Table:
    shown = table[[name for name in _COLUMNS if name in table]].reset_index(drop=True)
    return Table(shown, f"{len(shown)} scores", sortable=True)
