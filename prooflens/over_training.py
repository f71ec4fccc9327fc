"""Which roles appear when: a model inspected at several checkpoints of its training.

    inspect_over_training("code-lm", ["step-500", "step-900", "main"], "out")

A revision is a branch, tag or commit on the hub, or a checkpoint's folder inside a model's folder;
``main`` is the model itself. Each is inspected into a folder of its own, with the same seed, and
one page shows where they differ. Rows follow from what a checkpoint has learned (its tokens, its
positions): the page says whether all had the same. An interrupted series goes on with ``resume``.

Every checkpoint is decided by itself: a head that is confirmed at one and a candidate at the next
need not have changed. That a role appears between two checkpoints does not say what made it appear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import OutputError, Problems
from interp.output import check_output, output_file
from interp.weights.revisions import place_of_revision, refuse_repeated
from prooflens.inspection import MARKER, inspect, table_records
from prooflens.pages.roles_over_training import folder_name, roles_findings, roles_page
from trained.loading import folder_of

__all__ = ["OverTraining", "inspect_over_training"]


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
    whole, folder = folder_of(model), Path(out)
    places = {name: place_of_revision(whole, name) for name in revisions}
    inside = {name: folder / folder_name(name) for name in revisions}
    apart, advice = len({*inside.values()}) == len(inside), "inspect them one by one"
    problems.need(apart, "revisions", "must be names of different folders", revisions, advice)
    problems.raise_if_any()
    if folder.is_dir() and (folder / MARKER).exists():
        raise OutputError(f"{folder} holds an inspection of one checkpoint: name another folder")
    for place in inside.values():
        check_output(place, overwrite=overwrite or resume, marker=MARKER, inputs=[whole])
    found, trials, rows = list[pd.DataFrame](), dict[str, pd.DataFrame](), list[Any]()
    for name, (source, revision) in places.items():
        step(f"{model} at {name}")
        how = options | {"overwrite": overwrite, "resume": resume and inside[name].exists()}
        one = inspect(source, out=inside[name], revision=revision, step=step, **how).measured
        found.append(one["roles"].assign(revision=name))
        trials[name] = one["trials"]
        rows.append(one.about["rows_sha256"])
    roles = pd.concat(found, ignore_index=True)
    roles.insert(0, "revision", roles.pop("revision"))
    said = roles_findings(roles, trials, list(one.about["asked"]))
    page = roles_page(
        roles,
        said,
        list(revisions),
        model=str(model),
        unit=str(one.about["unit"]),
        same_rows=all(one == rows[0] for one in rows),
        folder=folder,
    )
    for name, text in (("roles.csv", roles.to_csv(index=False)), ("report.html", page)):
        with output_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")
    return OverTraining(roles, said)
