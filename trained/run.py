"""One training run: which model learns which task, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from interp.errors import Problems
from interp.models.kinds import Spec, kind_of
from interp.tasks.base import Task
from trained.training import Training

__all__ = ["Run"]


@dataclass(frozen=True)
class Run:
    """What is trained on what.

    Attributes:
        name: Unique in a grid; a folder's name, so without slashes.
        task: Where training rows come from.
        spec: Of a transformer or a baseline.
        training: How.
        test: Where the metrics' rows come from; ``task`` itself by default.

    Raises:
        ArgumentError: for a name that cannot be a folder's, or something that is no spec.
    """

    name: str
    task: Task
    spec: Spec
    training: Training
    test: Task | None = None

    def __post_init__(self) -> None:
        problems = Problems("Run")
        good = bool(self.name) and not set(self.name) & set("/\\\0") and self.name[0] != "."
        rule = "must be a name without slashes or a leading dot"
        problems.need(good, "name", rule, self.name, "e.g. depth-2-seed-0")
        problems.raise_if_any()
        kind_of(self.spec)

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON data."""
        return {
            "name": self.name,
            "task": self.task.to_dict(),
            "spec": {"kind": kind_of(self.spec), **self.spec.to_dict()},
            "training": asdict(self.training),
            "test": self.test.to_dict() if self.test is not None else None,
        }
