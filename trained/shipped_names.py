"""The names of the shipped models: the folders of checkpoints in the package.

Nothing heavy is imported, so that a shell can complete names while the user types.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def names() -> list[str]:
    """Return the names of the shipped models that were trained on tasks, sorted; language models
    are listed by :func:`languages`."""
    return sorted(file.parent.name for file in _checkpoints().glob("*/model.json"))


def languages() -> list[str]:
    """Return the names of the shipped language models, sorted; checkpoints of their training are
    NAME/step-N."""
    there = _checkpoints()
    return sorted(
        str(file.parent.relative_to(there).as_posix())
        for pattern in ("*/config.json", "*/step-*/config.json")
        for file in there.glob(pattern)
    )


def folder(name: str) -> Path:
    """Return the folder of a shipped model's checkpoint."""
    return _checkpoints() / name


def _checkpoints() -> Path:
    return Path(str(files("trained"))) / "checkpoints"
