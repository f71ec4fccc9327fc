"""Which roles appear when: a model inspected at several checkpoints of its training.

    inspect_over_training("code-lm", ["step-500", "step-900", "main"], "out")

A revision is a branch, tag or commit on the hub, or a checkpoint's folder inside a model's folder;
``main`` is the model itself. Each is inspected into a folder of its own, with the same seed, and
one page shows how they differ. Rows depend on what a checkpoint has learned (its tokens, its
positions): the page says whether all checkpoints had the same rows. An interrupted series is
continued with ``resume``.

Every checkpoint is decided by itself: a head that is confirmed at one and a candidate at the next
need not have changed. That a role appears between two checkpoints does not say what made it appear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import OutputError, Problems
from interp.output import check_output, output_file
from interp.weights.revisions import place_of_revision, refuse_repeated
from prooflens.inspection import (
    MARKER,
    Measurements,
    inspect,
    inspection_folder,
    table_records,
)
from prooflens.pages.over_training import folder_name, roles_findings, roles_page
from trained.loading import folder_of

__all__ = ["OverTraining", "inspect_over_training"]

_SERIES = ".prooflens-inspections"
"""Name of the marker file of a folder that holds the inspections of several checkpoints."""


@dataclass(frozen=True)
class OverTraining:
    """The results of inspecting several checkpoints of one training.

    Attributes:
        roles: The role tables of all checkpoints, with the column ``revision`` in front.
        findings: Which roles are confirmed at which checkpoint, in sentences.
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
        out: The folder for ``report.html``, ``roles.csv``, and one folder per inspection.
        overwrite, resume: Whether to replace the folders, or to continue an interrupted series in
            them.
        step: A function that is called with a sentence saying what is being done.
        options: Further arguments of :func:`prooflens.inspection.inspect`.

    Raises:
        ArgumentError: if a revision is named twice, none is named, or an option does not fit.
        CheckpointError: if a revision does not exist.
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
    folders, advice = {folder_name(name) for name in revisions}, "inspect them one by one"
    rule = "must be names of different folders"
    problems.need(len(folders) == len(places), "revisions", rule, revisions, advice)
    problems.raise_if_any()
    if place.is_dir() and (place / MARKER).exists():
        raise OutputError(f"{place} holds an inspection of one checkpoint: name another folder")
    check_output(place, overwrite=overwrite, resume=resume, marker=_SERIES, inputs=[whole])
    with inspection_folder(place, resume=resume, overwrite=overwrite, marker=_SERIES) as folder:
        measured = dict[str, Measurements]()
        for name, (source, revision) in places.items():
            step(f"{model} at {name}")
            inside = folder / folder_name(name)
            how = options | {"resume": resume and inside.exists()}
            one = inspect(source, out=inside, revision=revision, step=step, **how)
            measured[name] = one.measured
        return _combine(measured, str(model), folder)


def _combine(measured: Mapping[str, Measurements], model: str, folder: Path) -> OverTraining:
    """Combine the tables of all checkpoints, and write the page on them."""
    tables = [one["roles"].assign(revision=name) for name, one in measured.items()]
    roles = pd.concat(tables, ignore_index=True)
    roles.insert(0, "revision", roles.pop("revision"))
    first, *others = (one.about for one in measured.values())
    trials = {name: one["trials"] for name, one in measured.items()}
    said = roles_findings(roles, trials, list(first["asked"]))
    same = all(one["rows_sha256"] == first["rows_sha256"] for one in others)
    about: dict[str, Any] = {"model": model, "unit": str(first["unit"]), "same_rows": same}
    page = roles_page(roles, said, list(measured), **about, folder=folder)
    for name, text in (("roles.csv", roles.to_csv(index=False)), ("report.html", page)):
        with output_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")
    return OverTraining(roles, said)
