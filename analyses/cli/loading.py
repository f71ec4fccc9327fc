"""Which task a command line names: own, KIND, or KIND:ARGUMENT=VALUE,…

``own`` is what the model was trained on. MODEL is whatever :func:`trained.loading.load` takes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from interp.errors import ArgumentError
from interp.models.card import ModelCard
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict
from trained.loading import load

__all__ = ["load_with_task", "task_of"]

_OWN = "own"


def load_with_task(name: str, text: str) -> tuple[Any, Task]:
    """A model and the task of :func:`task_of`; a task that is refused costs no loading."""
    task = None if text == _OWN else _parsed(text)
    model = load(name)
    return model, task or task_of(text, model.card)


def task_of(text: str, card: ModelCard) -> Task:
    """A task from ``own``, ``KIND`` or ``KIND:ARGUMENT=VALUE,…`` (values as JSON, else as text).

    Raises:
        ArgumentError: if it is written otherwise, the catalogue refuses it, or the model has none.
    """
    if text != _OWN:
        return _parsed(text)
    if card.task is None:
        raise ArgumentError(
            f"task must be named for {card.name!r}, got none or 'own': only a shipped model or a "
            "checkpoint of 'prooflens train' knows its own; use --task KIND:ARGUMENT=VALUE,…"
            + "".join(f" ({note})" for note in card.notes if note.startswith("its task"))
        )
    task: Task = card.task
    return task


def _parsed(text: str) -> Task:
    kind, _, rest = text.partition(":")
    data: dict[str, Any] = {"kind": kind}
    for pair in filter(None, re.split(r",(?=\s*\w+=)", rest)):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ArgumentError(f"task must be KIND:ARGUMENT=VALUE,… , got {text!r}: add a '='")
        try:
            data[name.strip()] = json.loads(value)
        except ValueError:
            data[name.strip()] = value.strip()
    return task_from_dict(data)
