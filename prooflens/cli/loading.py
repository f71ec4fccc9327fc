"""Load what a command line names: a model, its task (own, KIND, or KIND:ARGUMENT=VALUE,…), rows.

``own`` is the task that the model was trained on. MODEL is whatever :func:`trained.loading.load`
takes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError
from interp.models.card import ModelCard
from interp.reading import parse_json
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict
from probes.own_rows import OwnRows, read_own_rows
from prooflens.cli.usage import MOST
from trained.loading import load

_OWN = "own"


def load_with_task(name: str, text: str, **place: Any) -> tuple[Any, Task]:
    """Load a model and the task of :func:`task_of`; a malformed task is refused before the model is
    loaded.

    Args:
        name: The model's name.
        text: The task, as for :func:`task_of`.
        place: ``device`` and ``dtype``, as :func:`trained.loading.load` takes them.
    """
    task = named_task(text)
    model = load(name, **place)
    return model, task or task_of(text, model.card)


def load_with_data(
    name: str,
    file: Path,
    *,
    rows: int = 10**9,
    least: int = 0,
    whole: bool = False,
    **place: Any,
) -> tuple[Any, OwnRows]:
    """Load a model and the user's rows, ids or a text, as ``inspect --data`` reads them.

    Args:
        name: The model's name.
        file: The file of the rows (:mod:`probes.own_rows`).
        rows: The largest number of rows that are used.
        least: The least number of rows.
        whole: Whether rows of other lengths are refused instead of left out, because labels count
            them too.
        place: ``device`` and ``dtype``, as :func:`trained.loading.load` takes them.

    Raises:
        ArgumentError: for a model of real values, or rows that do not fit.
    """
    model = load(name, **place)
    card = model.card
    if not card.vocabulary:
        raise ArgumentError(f"--data needs a model of tokens, got {name}: name its task instead")
    longest = int(card.n_ctx or MOST["length"])
    size = {"vocabulary": card.vocabulary, "rows": rows, "length": longest}
    found = read_own_rows(file, **size, tokenizer=card.tokenizer)
    if len(found.batch) < least:
        raise ArgumentError(
            f"too few rows for nulls, which exchange rows: needs {least}, got {len(found.batch)} "
            f"in {file}: give more"
        )
    if whole and "left out" in found.about:
        raise ArgumentError(f"rows must be of one length for labels, got {found.about}: cut them")
    return model, found


def task_of(text: str, card: ModelCard) -> Task:
    """Return the task that a command-line argument names.

    Args:
        text: ``own`` for the task the model was trained on, or ``KIND`` or
            ``KIND:ARGUMENT=VALUE,…``. A value that is not valid JSON is taken as text.
        card: The model's card, which holds its own task.

    Raises:
        ArgumentError: if the text is malformed, the catalogue has no such task or refuses its
            arguments, or the text is ``own`` and the model's task is unknown.
    """
    if text != _OWN:
        return _parse_task(text)
    if card.task is None:
        raise ArgumentError(
            f"task must be named for {card.name!r}, got none or 'own': only a shipped model or a "
            "checkpoint of 'prooflens train' knows its own; use --task KIND:ARGUMENT=VALUE,…"
            + "".join(f" ({note})" for note in card.notes if note.startswith("its task"))
        )
    task: Task = card.task
    return task


def named_task(text: str) -> Task | None:
    """Return the task of ``KIND`` or ``KIND:ARGUMENT=VALUE,…``; None for ``own``.

    Raises:
        ArgumentError: if the text has another form, or the catalogue refuses it.
    """
    return None if text == _OWN else _parse_task(text)


def _parse_task(text: str) -> Task:
    kind, _, rest = text.partition(":")
    data: dict[str, Any] = {"kind": kind}
    for pair in filter(None, re.split(r",(?=\s*\w+=)", rest)):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ArgumentError(f"task must be KIND:ARGUMENT=VALUE,… , got {text!r}: add a '='")
        if name.strip() in data:
            raise ArgumentError(f"task must name {name.strip()} once, got {text!r}: drop one")
        try:
            data[name.strip()] = parse_json(value, name)
        except ArgumentError:
            data[name.strip()] = value.strip()
    return task_from_dict(data)
