"""Load what a command line names: a task (own, KIND, or KIND:ARGUMENT=VALUE,…), or a text.

``own`` is what the model was trained on. MODEL is whatever :func:`trained.loading.load` takes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError
from interp.models.card import ModelCard
from interp.reading import parse_json, read_text
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict
from trained.loading import load, models

__all__ = ["lasting_name", "load_with_task", "task_of", "text_of"]

_OWN = "own"


def load_with_task(name: str, text: str) -> tuple[Any, Task]:
    """A model and the task of :func:`task_of`; a task that is refused costs no loading."""
    task = None if text == _OWN else _parsed(text)
    model = load(name)
    return model, task or task_of(text, model.card)


def lasting_name(name: str) -> str:
    """A model's name as a store should keep it: a folder's with its whole path.

    A store is opened from other working folders, where a relative path names something else.
    """
    shipped = name in models()
    return str(Path(name).resolve()) if not shipped and Path(name).is_dir() else name


def text_of(given: str) -> str:
    """The text that a command line gives: what a file holds, or the words themselves.

    What has no space in it is a file's name.

    Raises:
        ArgumentError: if the file is not there, or is not UTF-8 text.
    """
    file = Path(given)
    if any(letter.isspace() for letter in given) and not file.is_file():
        return given
    return read_text(file, "text")


def task_of(text: str, card: ModelCard) -> Task:
    """A task from ``own``, ``KIND`` or ``KIND:ARGUMENT=VALUE,…`` (values are JSON, or else text).

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
            data[name.strip()] = parse_json(value, name)
        except ArgumentError:
            data[name.strip()] = value.strip()
    return task_from_dict(data)
