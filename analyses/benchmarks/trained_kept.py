"""What was measured of a trained model, kept beside the models: a second run reads it.

A file a model. Of each measurement it keeps what was found and a digest of what that depends on, so
that only what has changed is measured anew: exchange between rows knows nothing of the detectors of
roles, and a change of those leaves it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import prooflens
from prooflens.files import digest, output_file
from prooflens.trained import TrainingRun

__all__ = ["depends_on", "kept"]

_DETECTORS = "probes/roles/"


def depends_on(run: TrainingRun, *, detectors: bool, given: Sequence[Any] = ()) -> str:
    """The SHA-256 of a run, of some numbers that a measurement was given, and of the sources of
    tasks, models and measurements, those of the detectors of roles among them or not."""
    text = json.dumps([digest([run]), _sources(detectors), *given])
    return hashlib.sha256(text.encode()).hexdigest()


def kept(file: Path, name: str, of: str, measure: Callable[[], Any]) -> Any:
    """What ``measure`` gives, as JSON has it, or what the file has of it.

    Args:
        file: The model's; made where there is none.
        name: The measurement's.
        of: What it depends on.
        measure: Called if the file has no measurement of that.

    Raises:
        OutputError: if the disk refuses.
    """
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if known.get(name, {}).get("of") != of:
        known[name] = {"of": of, "found": measure()}
        file.parent.mkdir(parents=True, exist_ok=True)
        with output_file(file, overwrite=True) as draft:
            draft.write_text(json.dumps(known), "utf-8")
    return known[name]["found"]


@cache
def _sources(detectors: bool) -> str:
    root, found = Path(prooflens.__file__).parents[1], hashlib.sha256()
    for package in ("interp", "probes"):
        for file in sorted((root / package).rglob("*.py")):
            if detectors or _DETECTORS not in file.as_posix():
                found.update(file.read_bytes())
    return found.hexdigest()
