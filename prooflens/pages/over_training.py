"""The weights of heads over a training, as files: a page, a figure, a table and a few sentences.

Of each number the page names the heads that move most between the first and the last checkpoint
that were given. That a head's weights moved does not say that the model uses the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from interp.figures.lines import HeadLines, heads_over_training
from interp.figures.style import save
from interp.output import output_folder
from interp.weights.metric_names import COMPOSITIONS
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render
from prooflens.pages.weights import CLEAR, CSV_COLUMNS, clear_diagonals

TRAINING_COLUMNS = ("revision", *CSV_COLUMNS)
_TOLD, _SPREAD = 4, 3
_RATIO = "times that of random directions"
_LABELS = {
    "trace_share": "trace share: tr M / (√n ‖M‖)",
    "copying_score": "copying score: Σ Re λ / Σ |λ|",
}
_DOUBTS = (
    "That a head's weights moved does not say that the model uses the head: for that, run "
    "prooflens inspect on the checkpoints.",
    "Checkpoints stand at equal distances, whatever number of steps lies between them.",
)


def training_lines(table: pd.DataFrame, told: int = _TOLD) -> list[HeadLines]:
    """Prepare the panels of the figure that shows heads over training: one for each metric.

    A panel has one line for each head. In the panels of composition scores, a head is shown at each
    checkpoint by its strongest pair, relative to the score of random directions.

    Args:
        table: From :func:`interp.weights.revisions.weights_over_training`.
        told: How many heads are coloured in each panel: those whose values vary most.
    """
    revisions = list(dict.fromkeys(table["revision"]))
    return [
        _panel(str(circuit), str(metric), rows, revisions, told)
        for (circuit, metric), rows in _numbers(table).groupby(["circuit", "metric"], sort=False)
    ]


def training_findings(table: pd.DataFrame, told: int = _TOLD) -> list[str]:
    """What changed between the checkpoints, in sentences with their numbers."""
    revisions = list(dict.fromkeys(table["revision"]))
    return [*_clear(table, revisions), *_changes(table, revisions, told)]


def write_training_page(
    table: pd.DataFrame,
    folder: Path,
    *,
    model: str,
    facts: Sequence[str],
    overwrite: bool,
    told: int = _TOLD,
) -> None:
    """Write report.html, the figure (PNG and SVG), weights.csv and findings.txt into one folder.

    Raises:
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    said, lines = training_findings(table, told), training_lines(table, told)
    revisions = list(dict.fromkeys(table["revision"]))
    with output_folder(folder, overwrite=overwrite, marker=".prooflens-weights") as draft:
        table[list(TRAINING_COLUMNS)].to_csv(draft / "weights.csv", index=False)
        (draft / "findings.txt").write_text("\n".join(said) + "\n", encoding="utf-8")
        path = draft / "heads-over-training"
        save(heads_over_training(lines, revisions), path)
        narrow = path.with_name("heads-over-training-narrow")
        save(heads_over_training(lines, revisions, columns=1), narrow, formats=("png",))
        picture = Picture(
            path.with_suffix(".png"),
            f"Heads of {model} at {len(revisions)} checkpoints: a line a head; those that moved "
            f"most are in colour. Grey band: {_SPREAD} deviations of random weights.",
            narrow=narrow.with_suffix(".png"),
            told=" ".join(said),
        )
        sections = [Section("Every head", (), (), [_wide(table, revisions)], folded=True)]
        title = f"Heads of {page_name(model)} over training"
        page = Page(title, said, sections, facts, picture, _DOUBTS)
        (draft / "report.html").write_text(render(page), encoding="utf-8")


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """A row a revision, head and number, with the band of chance; of compositions the ratio to that
    of random directions, of the pair in which it is largest."""
    single = table[~table["metric"].isin(COMPOSITIONS)]
    pairs = table[table["metric"].isin(COMPOSITIONS)]
    mean = pairs["null_mean"]
    pairs = pairs.assign(
        score=pairs["score"] / mean, null_std=pairs["null_std"] / mean, null_mean=1.0
    )
    key = ["revision", "metric", "layer", "head"]
    pairs = pairs.sort_values("score", ascending=False, kind="stable").drop_duplicates(key)
    pairs = pairs.sort_values(["layer", "head"], kind="stable")
    kept = pd.concat([single, pairs], ignore_index=True)
    return kept.assign(name=[f"L{r.layer}H{r.head}" for r in kept.itertuples()])


def _panel(
    circuit: str, metric: str, rows: pd.DataFrame, revisions: Sequence[str], told: int
) -> HeadLines:
    wide = rows.pivot(index="name", columns="revision", values="score")[revisions]
    wide = wide.loc[list(dict.fromkeys(rows["name"]))]
    chance = rows.groupby("revision")[["null_mean", "null_std"]].mean().loc[list(revisions)]
    spread = _SPREAD * chance["null_std"]
    pair = metric in COMPOSITIONS
    words = metric.replace("_", "-" if pair else " ")
    return HeadLines(
        title=f"{words.capitalize()}: strongest writer" if pair else f"{circuit}: {words}",
        label=_RATIO if pair else _LABELS.get(metric, words),
        heads=list(wide.index),
        values=wide.to_numpy(),
        low=(chance["null_mean"] - spread).to_numpy(),
        high=(chance["null_mean"] + spread).to_numpy(),
        told=list((wide.max(axis=1) - wide.min(axis=1)).nlargest(told).index),
    )


def _clear(table: pd.DataFrame, revisions: Sequence[str]) -> Iterator[str]:
    shares = table[table["metric"] == "trace_share"]
    for circuit in dict.fromkeys(shares["circuit"]):
        mine = shares[shares["circuit"] == circuit]
        counts = [len(clear_diagonals(mine[mine["revision"] == name])) for name in revisions]
        told = ", ".join(f"{n} at {name}" for n, name in zip(counts, revisions, strict=True))
        heads = len(mine) // len(revisions)
        yield f"{circuit}: of {heads} heads a clear diagonal ({CLEAR}) have {told}."


def _changes(table: pd.DataFrame, revisions: Sequence[str], told: int) -> Iterator[str]:
    first, last = revisions[0], revisions[-1]
    if first == last:
        return
    for (circuit, metric), rows in table.groupby(["circuit", "metric"], sort=False):
        ends = rows[rows["revision"].isin((first, last))]
        pair = metric in COMPOSITIONS
        score = ends["score"] / ends["null_mean"] if pair else ends["score"]
        ends = ends.assign(shown=score)
        wide = ends.pivot(index=["layer", "head", "target"], columns="revision", values="shown")
        wide = wide.assign(moved=(wide[last] - wide[first]).abs()).nlargest(told, "moved")
        listed = map(_change, wide.index, wide[first], wide[last])
        what = str(metric).replace("_", "-").capitalize() if pair else f"{circuit} {metric}"
        unit = f", {_RATIO}" if pair else ""
        yield f"{what} moves most from {first} to {last}{unit}: {'; '.join(listed)}."


def _change(place: tuple[int, int, str], before: float, after: float) -> str:
    layer, head, target = place
    if target:
        return f"{target} → L{layer}H{head} ({before:.2f} → {after:.2f})"
    return f"L{layer}H{head} ({before:+.3f} → {after:+.3f})"


def _wide(table: pd.DataFrame, revisions: Sequence[str]) -> PageTable:
    numbers = _numbers(table)
    wide = numbers.pivot(index=["circuit", "metric", "name"], columns="revision", values="score")
    shown = wide[list(revisions)].reset_index()
    caption = (
        "Scores at each checkpoint; of compositions the strongest writer's, over that of random "
        "directions. weights.csv has nulls, p, q and every pair."
    )
    return PageTable(shown, caption, sortable=True)
