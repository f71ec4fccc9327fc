"""The weight metrics of every head at several checkpoints of one training run.

    weights_over_training("code-lm", ["step-500", "step-900", "main"])

A revision is a branch, tag or commit of a repository on the hub, of which only the weights of heads
are downloaded (:mod:`interp.weights.head_weights.remote`), or a checkpoint's folder inside a
model's folder; ``main`` is the model itself. The tables of
:func:`~interp.weights.weight_table.weight_table` for the revisions are concatenated, so a q is over
the heads of one checkpoint.

A change of a head's score shows that training moved these weights. It does not show when the model
began to use the head: that takes runs of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import CheckpointError, Problems
from interp.weights.head_weights.families import head_weights
from interp.weights.head_weights.layers import HeadWeights
from interp.weights.weight_table import weight_table

MAIN = "main"
_METRICS = ("trace_share", "copying_score", "k_composition")


def weights_over_training(
    model: str | Path,
    revisions: Sequence[str] | Mapping[str, HeadWeights],
    metrics: Sequence[str] = _METRICS,
    *,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
    **options: Any,
) -> pd.DataFrame:
    """Compute the weight metrics of every head at each revision, with their nulls.

    Args:
        model: A folder that holds folders of checkpoints, or a hub id.
        revisions: Names of checkpoints, in the order of training; or the result of
            :func:`opened_revisions` for them.
        metrics: Metrics of :func:`~interp.weights.weight_table.weight_table`.
        watch: A wrapper of the iteration over revisions, such as a progress bar.
        options: ``fold_norm``, ``lag``, ``basis``, ``draws`` and ``seed`` of
            :func:`~interp.weights.weight_table.weight_table`.

    Returns:
        A head table with one more column in front, ``revision``.

    Raises:
        ArgumentError: if an option breaks a rule, a revision is named twice, or none is named.
        CheckpointError: if a revision is missing, or its model has another shape.
    """
    opened = (
        revisions if isinstance(revisions, Mapping) else opened_revisions(model, list(revisions))
    )
    tables = []
    for revision in watch(list(opened)):
        table = weight_table(opened[revision], metrics, **options)
        table.insert(0, "revision", revision)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def opened_revisions(
    model: str | Path, revisions: Sequence[str], **options: Any
) -> dict[str, HeadWeights]:
    """Open every revision, so that a missing one raises an error before anything is computed.

    Args:
        model: A folder or a hub id.
        revisions: Names of checkpoints, in the order of training.
        options: ``mapping`` and ``download``, as :func:`~interp.weights.head_weights.head_weights`
            takes them.

    Returns:
        Revision → its opened weights.

    Raises:
        ArgumentError: if a revision is named twice, or none is named.
        CheckpointError: if a revision is missing, or its model has another shape.
    """
    refuse_repeated(revisions)
    opened = {name: head_weights_at(model, name, **options) for name in revisions}
    first = opened[revisions[0]]
    for name, heads in opened.items():
        if heads.layout.sizes != first.layout.sizes:
            raise CheckpointError(
                f"{name} of {model} has other sizes than {revisions[0]}: "
                f"{vars(heads.layout.sizes)}, not {vars(first.layout.sizes)}"
            )
    return opened


def refuse_repeated(revisions: Sequence[str]) -> None:
    """Refuse an empty list of checkpoints, an empty name, or a checkpoint that is named twice.

    Raises:
        ArgumentError: if the list breaks one of these rules.
    """
    problems = Problems("revisions")
    named = bool(revisions) and all(revisions)
    problems.need(named, "revisions", "must name checkpoints", revisions, "as step-500,main")
    twice = sorted({name for name in revisions if list(revisions).count(name) > 1})
    problems.need(not twice, "revisions", "must be named once each", twice, "leave out the others")
    problems.raise_if_any()


def head_weights_at(model: str | Path, revision: str, **options: Any) -> HeadWeights:
    """Open the head weights of a model's revision: a folder inside its folder, or one on the hub.

    Args:
        model: A folder or a hub id.
        revision: For a hub id a branch, tag or commit; for a folder the name of a folder inside it,
            or ``main`` for the folder itself.
        options: ``mapping`` and ``download``, as :func:`~interp.weights.head_weights.head_weights`
            takes them.

    Raises:
        CheckpointError: if the revision is missing.
    """
    place, named = place_of_revision(model, revision)
    return head_weights(place, revision=named, **options)


def place_of_revision(model: str | Path, revision: str) -> tuple[str | Path, str | None]:
    """Return the path or hub id to load a model's revision from, and the revision to ask the hub
    for.

    Args:
        model: A folder or a hub id.
        revision: For a hub id a branch, tag or commit; for a folder the name of a folder inside it,
            or ``main`` for the folder itself.

    Raises:
        CheckpointError: if the folder has no folder of this name.
    """
    folder = Path(model)
    if not folder.is_dir():
        return model, revision
    if (folder / revision).is_dir():
        return folder / revision, None
    if revision != MAIN:
        inside = sorted(path.parent.name for path in folder.glob("*/*.safetensors"))
        known = ", ".join([*dict.fromkeys(inside), MAIN])
        raise CheckpointError(f"{model} has no checkpoint {revision!r}: name some of {known}")
    return folder, None
