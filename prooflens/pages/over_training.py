"""Pages on several checkpoints of one training: the weights of heads, and the roles of a model.

Weights: a page, a figure, a table and a few sentences. For each number the page names the heads
that change most between the first and the last checkpoint. That a head's weights changed does not
show that the model uses the head.

Roles: sentences, a figure and a table. The figure shows, in one panel per role, what is lost
without each head that is confirmed at some checkpoint, or without its group; there is no point if
the head does not have the behaviour at a checkpoint, or nothing could be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.figures.lines import HeadLines, heads_over_training
from interp.figures.style import save
from interp.output import output_folder
from interp.weights.metric_names import COMPOSITIONS
from prooflens.pages.findings import in_words, loss_without, part_names
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render
from prooflens.pages.weights import CLEAR, CSV_COLUMNS, clear_diagonals

TRAINING_COLUMNS = ("revision", *CSV_COLUMNS)
_TOLD, _SPREAD = 4, 3
_MISSED_MOST = 5
_RATIO = "times that of random directions"
_LABELS = {
    "trace_share": "trace share: tr M / (√n ‖M‖)",
    "copying_score": "copying score: Σ Re λ / Σ |λ|",
}
_DISTANCES = "Checkpoints stand at equal distances, whatever number of steps lies between them."
_WEIGHTS_DOUBTS = (
    "That a head's weights moved does not say that the model uses the head: for that, run "
    "prooflens inspect on the checkpoints.",
    _DISTANCES,
)
_UNITS = {"nats": "nats lost without it", "variance": "share of the output's variance"}
_ROLES_DOUBTS = (
    "Every checkpoint is decided by itself: a head that is confirmed at one and a candidate at the "
    "next need not have changed. The checkpoint's own page has the tests.",
    _DISTANCES,
)
_OTHER_ROWS = (
    "The rows are not the same at all checkpoints, since they follow from what a model has "
    "learned; each page says which it had. Losses and effects are then of different rows."
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
        _weights_panel(str(circuit), str(metric), rows, revisions, told)
        for (circuit, metric), rows in _numbers(table).groupby(["circuit", "metric"], sort=False)
    ]


def training_findings(table: pd.DataFrame, told: int = _TOLD) -> list[str]:
    """Return sentences, with their numbers, about what changed between the checkpoints.

    Args:
        table: From :func:`interp.weights.revisions.weights_over_training`.
        told: How many heads are named for each change.
    """
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

    Args:
        table: From :func:`interp.weights.revisions.weights_over_training`.
        folder: The folder to write.
        model: The model's name, for the title and the caption.
        facts: Versions, seeds and settings, for the small print at the end.
        overwrite: Whether an existing folder of such a page may be replaced.
        told: How many heads are coloured in each panel of the figure, and how many the findings
            name for each change: those that changed most.

    Raises:
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    said, lines = training_findings(table, told), training_lines(table, told)
    revisions = list(dict.fromkeys(table["revision"]))
    with output_folder(folder, overwrite=overwrite, marker=".prooflens-weights") as draft:
        table[list(TRAINING_COLUMNS)].to_csv(draft / "weights.csv", index=False)
        (draft / "findings.txt").write_text("\n".join(said) + "\n", encoding="utf-8")
        picture = _picture(
            lines,
            revisions,
            draft / "heads-over-training",
            f"Heads of {model} at {len(revisions)} checkpoints: a line a head; those that moved "
            f"most are in colour. Grey band: {_SPREAD} deviations of random weights.",
            told=" ".join(said),
        )
        sections = [Section("Every head", (), (), [_wide(table, revisions)], folded=True)]
        title = f"Heads of {page_name(model)} over training"
        page = Page(title, said, sections, facts, picture, _WEIGHTS_DOUBTS)
        (draft / "report.html").write_text(render(page), encoding="utf-8")


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per revision, head and score, with the null's mean and deviation.

    Composition scores are divided by their mean for random directions; of a head's pairs the one
    with the largest ratio is kept.
    """
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


def _weights_panel(
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


def roles_findings(
    roles: pd.DataFrame, trials: Mapping[str, pd.DataFrame], asked: Sequence[str]
) -> list[str]:
    """Return sentences about how well the model does, and which roles are confirmed, at each
    checkpoint.

    Args:
        roles: The role tables of all checkpoints, with the column ``revision``.
        trials: Checkpoint → how well the model does there.
        asked: The roles that were tested for, in the order of the sentences.
    """
    sure = _with_names(roles[roles["status"] == "confirmed"])
    known = [role for role in asked if role in set(sure["role"])]
    said = [*_losses(trials), *(_where_confirmed(sure, role, list(trials)) for role in known)]
    return said if known else [*said, "No role is confirmed at any checkpoint."]


def roles_page(
    roles: pd.DataFrame,
    findings: Sequence[str],
    revisions: Sequence[str],
    *,
    model: str,
    unit: str,
    same_rows: bool,
    folder: Path,
) -> str:
    """Render the page on the roles of all checkpoints as one HTML file.

    Args:
        roles: The role tables of all checkpoints, with the column ``revision``.
        findings: The sentences with which the page begins.
        revisions: The checkpoints, in the order of training.
        model: The model's name.
        unit: Unit of the effects, ``nats`` or ``variance``.
        same_rows: Whether all checkpoints were run on the same rows.
        folder: The folder to which the figure is written.
    """
    rows = _with_names(roles)
    title = f"Roles of {page_name(model)} over training"
    sections = [Section("Every role", (), (), [_statuses(rows, revisions)], folded=True)]
    pages = [f"{name}: {folder_name(name)}/report.html" for name in revisions]
    picture = _roles_picture(rows, revisions, unit, folder)
    doubts = _ROLES_DOUBTS if same_rows else (_OTHER_ROWS, *_ROLES_DOUBTS)
    return render(Page(title, findings, sections, pages, picture, doubts))


def folder_name(revision: str) -> str:
    """Return the name of the folder into which a checkpoint is inspected."""
    return revision.replace("/", "-")


def _with_names(roles: pd.DataFrame) -> pd.DataFrame:
    return roles.assign(name=part_names(roles), lost=loss_without(roles))


def _losses(trials: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Yield the loss on the first kind of rows at each checkpoint, in words."""
    some = {name: table.iloc[0] for name, table in trials.items() if len(table)}
    if some:
        losses = [f"{row['loss']:.2f} at {name}" for name, row in some.items()]
        yield f"Loss on {next(iter(some.values()))['trial']} rows: {in_words(losses)}."


def _where_confirmed(sure: pd.DataFrame, role: str, revisions: Sequence[str]) -> str:
    """Return which components are confirmed in a role at each checkpoint, in words."""
    mine = sure[(sure["role"] == role) & (sure["component"] != "group")]
    told = []
    for name in revisions:
        here = mine[mine["revision"] == name].sort_values("lost", ascending=False, kind="stable")
        told.append(f"{in_words(list(dict.fromkeys(here['name']))) or 'none'} at {name}")
    return f"Confirmed as {role}: {'; '.join(told)}."


def _roles_picture(
    rows: pd.DataFrame, revisions: Sequence[str], unit: str, folder: Path
) -> Picture | None:
    sure = rows[rows["status"] == "confirmed"]
    known = list(dict.fromkeys(sure[sure["component"] != "group"]["role"]))
    if not known:
        return None
    panels = [_roles_panel(rows, sure, role, revisions, unit) for role in known]
    return _picture(
        panels,
        revisions,
        folder / "roles-over-training",
        f"What is lost without each component that is confirmed at some of {len(revisions)} "
        f"checkpoints, or without its group; in colour the {_MISSED_MOST} that are missed most, at "
        "most. No mark: it does not behave so there, or nothing could be measured.",
    )


def _roles_panel(
    rows: pd.DataFrame, sure: pd.DataFrame, role: str, revisions: Sequence[str], unit: str
) -> HeadLines:
    names = set(sure[sure["role"] == role]["name"])
    mine: Any = rows[(rows["role"] == role) & rows["name"].isin(names)]
    mine = mine[mine["component"] != "group"]
    wide = mine.pivot_table(index="name", columns="revision", values="lost", aggfunc="max")
    wide = wide.reindex(columns=list(revisions))
    told = list(wide.max(axis=1).nlargest(_MISSED_MOST).index)
    return HeadLines(role, _UNITS[unit], list(wide.index), wide.to_numpy(float), told=told)


def _statuses(rows: pd.DataFrame, revisions: Sequence[str]) -> PageTable:
    """Return a table with one row per component and role, and one column per checkpoint: the status
    and what is lost."""
    told = [
        f"{status} ({lost:+.2f})" if lost == lost else str(status)
        for status, lost in zip(rows["status"], rows["lost"], strict=True)
    ]
    keys = ["role", "name", "target"]
    wide = rows.assign(told=told).pivot_table(
        index=keys, columns="revision", values="told", aggfunc="first", sort=False
    )
    wide = wide.reindex(columns=list(revisions)).fillna("").reset_index()
    return PageTable(
        wide, "Status, and what is lost without the component or its group.", sortable=True
    )


def _picture(
    panels: Sequence[HeadLines], revisions: Sequence[str], path: Path, caption: str, told: str = ""
) -> Picture:
    """Write the figure of some panels, and a narrow one, and return both for the page."""
    save(heads_over_training(panels, revisions), path)
    narrow = path.with_name(f"{path.name}-narrow")
    save(heads_over_training(panels, revisions, columns=1), narrow, formats=("png",))
    pictures = [file.with_suffix(".png") for file in (path, narrow)]
    return Picture(pictures[0], caption, narrow=pictures[1], told=told)
