"""Which model and which task a command line names.

MODEL   a shipped model, a checkpoint's folder, or a Hugging Face folder or id
TASK    own (what the model was trained on), KIND, or KIND:ARGUMENT=VALUE,…
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError, CheckpointError
from interp.models.checkpoint import load_checkpoint, read_metadata
from interp.tasks.base import Task
from interp.tasks.catalogue import known_task, task_from_dict
from trained import zoo

__all__ = ["Named", "folder_of", "load_model", "load_named", "load_with_task", "task_of"]

_OWN = "own"
_OF_MODELS = ("config.json", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "pytorch_model*")


@dataclass(frozen=True)
class Named:
    """What a name on the command line stands for.

    Attributes:
        name: As it was typed.
        model: Fires hooks.
        task: What it was trained on; None where nothing says.
        tokenizer: From text to ids; None where there is none.
        note: Why a task that the checkpoint records is not known here; or empty.
    """

    name: str
    model: Any
    task: Task | None = None
    tokenizer: Any = None
    note: str = ""


def folder_of(name: str) -> str:
    """Where a shipped model lies; any other name as it is."""
    return str(zoo.folder(name)) if name in zoo.names() else name


def load_named(name: str) -> Named:
    """A shipped model, a checkpoint of ours, or a Hugging Face model through a bridge.

    Raises:
        CheckpointError: if it is none of these or cannot be loaded.
        ConformanceError: if hooks of a pretrained model carry what their names do not say.
    """
    if name in zoo.names():
        shipped = zoo.load(name)
        return Named(name, shipped.model, shipped.task)
    place = Path(name).expanduser()
    if (place / "model.json").is_file():
        task, note = known_task(read_metadata(place).get("task"))
        return Named(name, load_checkpoint(place), task, note=note)
    return _pretrained(name)


def load_model(name: str) -> Any:
    """The model alone; see :func:`load_named`."""
    return load_named(name).model


def load_with_task(name: str, text: str) -> tuple[Any, Task]:
    """A model and the task of :func:`task_of`; a task that is refused costs no loading."""
    task = None if text == _OWN else _parsed(text)
    named = load_named(name)
    return named.model, task or task_of(text, named)


def task_of(text: str, owner: Named) -> Task:
    """A task from ``own``, ``KIND`` or ``KIND:ARGUMENT=VALUE,…`` (values as JSON, else as text).

    Raises:
        ArgumentError: if it is written otherwise, the catalogue refuses it, or the model has none.
    """
    if text != _OWN:
        return _parsed(text)
    if owner.task is None:
        raise ArgumentError(
            f"task must be named for {owner.name!r}, got none or 'own': only a shipped model or a "
            "checkpoint of 'prooflens train' knows its own; use --task KIND:ARGUMENT=VALUE,…"
            + (f" ({owner.note})" if owner.note else "")
        )
    return owner.task


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


def _pretrained(name: str) -> Named:
    from interp.models.pretrained import load_pretrained

    place = Path(name).expanduser()
    if not place.exists() and (near := get_close_matches(name, zoo.names(), 1)):
        raise CheckpointError(f"no model {name!r}: did you mean the shipped {near[0]}?")
    if (place / "store" / "manifest.json").is_file():
        raise CheckpointError(f"{name} holds no model: did you mean the store {place / 'store'}?")
    if place.is_dir() and not any(any(place.glob(pattern)) for pattern in _OF_MODELS):
        raise CheckpointError(
            f"{name} is neither a store (no manifest.json) nor a checkpoint (no model.json, "
            "config.json or weights): give a folder that 'prooflens extract' or 'prooflens train' "
            "wrote"
        )
    try:
        found = load_pretrained(name)
    except CheckpointError as error:
        raise CheckpointError(
            f"model {name!r} is not a shipped model (see 'prooflens models'), not a checkpoint's "
            f"folder, and no pretrained model: {error}"
        ) from error
    return Named(name, found.model, tokenizer=found.tokenizer)
