"""The roles of a model at several checkpoints of its training: sentences, a figure and a table.

Drawn is what is lost without each head that is confirmed at some checkpoint, or without its group,
a panel a role; nothing where it does not behave so, or nothing could be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.figures.lines import HeadLines, heads_over_training
from interp.figures.style import save
from prooflens.pages.findings import in_words, missed, part_names
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render

_TOLD = 5
_UNITS = {"nats": "nats lost without it", "variance": "share of the output's variance"}
_DOUBTS = (
    "Every checkpoint is decided by itself: a head that is confirmed at one and a candidate at the "
    "next need not have changed. The checkpoint's own page has the tests.",
    "Checkpoints stand at equal distances, whatever number of steps lies between them.",
)
_OTHER_ROWS = (
    "The rows are not the same at all checkpoints, since they follow from what a model has "
    "learned; each page says which it had. Losses and effects are then of different rows."
)


def roles_findings(
    roles: pd.DataFrame, trials: Mapping[str, pd.DataFrame], asked: Sequence[str]
) -> list[str]:
    """How well the model does, and what is confirmed, at each checkpoint.

    Args:
        roles: The role tables of all checkpoints, with the column ``revision``.
        trials: Checkpoint → how well the model does there.
        asked: The roles that were looked for, in the order of the sentences.
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
    """The page as one HTML file; its figure is written to a folder.

    Args:
        roles: The role tables of all checkpoints, with the column ``revision``.
        findings: The sentences that it opens with.
        revisions: The checkpoints, in the order of training.
        model: The model's name.
        unit: Unit of the effects, ``nats`` or ``variance``.
        same_rows: Whether all checkpoints were run on the same rows.
        folder: Where the figure goes.
    """
    rows = _with_names(roles)
    title = f"Roles of {page_name(model)} over training"
    sections = [Section("Every role", (), (), [_statuses(rows, revisions)], folded=True)]
    pages = [f"{name}: {folder_name(name)}/report.html" for name in revisions]
    picture = _picture(rows, revisions, unit, folder)
    doubts = _DOUBTS if same_rows else (_OTHER_ROWS, *_DOUBTS)
    return render(Page(title, findings, sections, pages, picture, doubts))


def folder_name(revision: str) -> str:
    """The name of the folder that a checkpoint is inspected into."""
    return revision.replace("/", "-")


def _with_names(roles: pd.DataFrame) -> pd.DataFrame:
    return roles.assign(name=part_names(roles), lost=missed(roles))


def _losses(trials: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """The loss on the first kind of rows at each checkpoint."""
    some = {name: table.iloc[0] for name, table in trials.items() if len(table)}
    if some:
        losses = [f"{row['loss']:.2f} at {name}" for name, row in some.items()]
        yield f"Loss on {next(iter(some.values()))['trial']} rows: {in_words(losses)}."


def _where_confirmed(sure: pd.DataFrame, role: str, revisions: Sequence[str]) -> str:
    """Which components are confirmed in a role at each checkpoint."""
    mine = sure[(sure["role"] == role) & (sure["component"] != "group")]
    told = []
    for name in revisions:
        here = mine[mine["revision"] == name].sort_values("lost", ascending=False, kind="stable")
        told.append(f"{in_words(list(dict.fromkeys(here['name']))) or 'none'} at {name}")
    return f"Confirmed as {role}: {'; '.join(told)}."


def _picture(
    rows: pd.DataFrame, revisions: Sequence[str], unit: str, folder: Path
) -> Picture | None:
    sure = rows[rows["status"] == "confirmed"]
    known = list(dict.fromkeys(sure[sure["component"] != "group"]["role"]))
    if not known:
        return None
    panels = [_panel(rows, sure, role, revisions, unit) for role in known]
    path = folder / "roles-over-training"
    save(heads_over_training(panels, revisions), path)
    narrow = path.with_name("roles-over-training-narrow")
    save(heads_over_training(panels, revisions, columns=1), narrow, formats=("png",))
    return Picture(
        path.with_suffix(".png"),
        f"What is lost without each component that is confirmed at some of {len(revisions)} "
        f"checkpoints, or without its group; in colour the {_TOLD} that are missed most, at most. "
        "No mark: it does not behave so there, or nothing could be measured.",
        narrow=narrow.with_suffix(".png"),
    )


def _panel(
    rows: pd.DataFrame, sure: pd.DataFrame, role: str, revisions: Sequence[str], unit: str
) -> HeadLines:
    names = set(sure[sure["role"] == role]["name"])
    mine: Any = rows[(rows["role"] == role) & rows["name"].isin(names)]
    mine = mine[mine["component"] != "group"]
    wide = mine.pivot_table(index="name", columns="revision", values="lost", aggfunc="max")
    wide = wide.reindex(columns=list(revisions))
    told = list(wide.max(axis=1).nlargest(_TOLD).index)
    return HeadLines(role, _UNITS[unit], list(wide.index), wide.to_numpy(float), told=told)


def _statuses(rows: pd.DataFrame, revisions: Sequence[str]) -> PageTable:
    """A row a component and role, a column a checkpoint: status and what is lost."""
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
