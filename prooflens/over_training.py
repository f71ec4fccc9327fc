"""Which roles appear when: a model inspected at several checkpoints of its training.

    inspect_over_training("code-lm", ["step-500", "step-900", "main"], "out")

A revision is a branch, tag or commit on the hub, or a checkpoint's folder inside a model's folder;
``main`` is the model itself. Each is inspected into a folder of its own, with the same seed, and
one page shows where they differ: its figure has a panel a role, with what is lost without each
component that is confirmed at some checkpoint, or without its group. Rows follow from what a
checkpoint has learned (its tokens, its positions): the page says whether all had the same. An
interrupted series goes on with ``resume``.

Every checkpoint is decided by itself: a head that is confirmed at one and a candidate at the next
need not have changed. That a role appears between two checkpoints does not say what made it appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import OutputError, Problems
from interp.figures.lines import HeadLines, heads_over_training
from interp.figures.style import save
from interp.output import check_output, output_file
from interp.weights.revisions import place_of_revision, refuse_repeated
from prooflens.inspection import (
    MARKER,
    Measurements,
    inspect,
    inspection_folder,
    table_records,
)
from prooflens.pages.findings import in_words, missed, part_names
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render
from trained.loading import folder_of

__all__ = ["OverTraining", "inspect_over_training"]

_SERIES = ".prooflens-inspections"
"""The file by which a folder is known to hold the inspections of several checkpoints."""
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


@dataclass(frozen=True)
class OverTraining:
    """What was found at several checkpoints of one training.

    Attributes:
        roles: The role tables of all, with the column ``revision`` in front.
        findings: What is confirmed at which checkpoint, in sentences.
    """

    roles: pd.DataFrame
    findings: list[str]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The role tables as JSON data."""
        return table_records(self.roles)


def inspect_over_training(
    model: str | Path,
    revisions: Sequence[str],
    out: str | Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    step: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> OverTraining:
    """Inspect a model at each revision, and write one page on all of them.

    Args:
        model: A shipped model, a folder or a hub id.
        revisions: Names of checkpoints, in the order of training.
        out: Folder for ``report.html``, ``roles.csv``, and a folder of each inspection.
        overwrite, resume: Replace the folders, or go on with an interrupted series in them.
        step: Called with a sentence that says what is being done.
        options: Handed to :func:`prooflens.inspection.inspect`.

    Raises:
        ArgumentError: if a revision is named twice, none is, or an option does not fit.
        CheckpointError: if a revision is not there.
        OutputError: if a folder may not be written.
    """
    refuse_repeated(revisions)
    problems = Problems("inspect")
    for name in ("revision", "adapter"):
        given = options.pop(name, None)
        rule, advice = "must not be given beside revisions", "leave it out"
        problems.need(given is None, name, rule, given, advice)
    problems.raise_if_any()
    whole, place = folder_of(model), Path(out)
    places = {name: place_of_revision(whole, name) for name in revisions}
    folders, advice = {_folder_name(name) for name in revisions}, "inspect them one by one"
    rule = "must be names of different folders"
    problems.need(len(folders) == len(places), "revisions", rule, revisions, advice)
    problems.raise_if_any()
    if place.is_dir() and (place / MARKER).exists():
        raise OutputError(f"{place} holds an inspection of one checkpoint: name another folder")
    check_output(place, overwrite=overwrite or resume, marker=_SERIES, inputs=[whole])
    with inspection_folder(place, resume=resume, overwrite=overwrite, marker=_SERIES) as folder:
        measured = dict[str, Measurements]()
        for name, (source, revision) in places.items():
            step(f"{model} at {name}")
            inside = folder / _folder_name(name)
            how = options | {"resume": resume and inside.exists()}
            one = inspect(source, out=inside, revision=revision, step=step, **how)
            measured[name] = one.measured
        return _combine(measured, str(model), folder)


def _combine(measured: Mapping[str, Measurements], model: str, folder: Path) -> OverTraining:
    """The tables of all checkpoints as one, with the page on them."""
    tables = [one["roles"].assign(revision=name) for name, one in measured.items()]
    roles = pd.concat(tables, ignore_index=True)
    roles.insert(0, "revision", roles.pop("revision"))
    first, *others = (one.about for one in measured.values())
    trials = {name: one["trials"] for name, one in measured.items()}
    said = _findings(roles, trials, list(first["asked"]))
    same = all(one["rows_sha256"] == first["rows_sha256"] for one in others)
    about: dict[str, Any] = {"model": model, "unit": str(first["unit"]), "same_rows": same}
    page = _page(roles, said, list(measured), **about, folder=folder)
    for name, text in (("roles.csv", roles.to_csv(index=False)), ("report.html", page)):
        with output_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")
    return OverTraining(roles, said)


def _findings(
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


def _page(
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
    pages = [f"{name}: {_folder_name(name)}/report.html" for name in revisions]
    picture = _picture(rows, revisions, unit, folder)
    doubts = _DOUBTS if same_rows else (_OTHER_ROWS, *_DOUBTS)
    return render(Page(title, findings, sections, pages, picture, doubts))


def _folder_name(revision: str) -> str:
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
