"""Template constructions over tasks, sizes, embeddings and seeds: positives for role detectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interp.proofs.mechanism import Construction
from interp.proofs.template.construction import construct_template
from interp.tasks.template import TemplateTask
from interp.tasks.template.named import (
    aabb_abab,
    aba_abb,
    copying,
    distribution_of_three,
    identity_rules,
    majority,
    match_to_sample,
    random_task,
    same_different,
)

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A task with the options of its construction; building is left to :meth:`construct`."""

    task: TemplateTask
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The task's name, then the options."""
        return "-".join([self.task.name, *(f"{k}={v}" for k, v in self.options.items())])

    def construct(self) -> Construction:
        """The model, its mechanism and its certificate."""
        return construct_template(self.task, **self.options)


_SMALL: dict[str, Any] = {"train": (0, 10), "test": (10, 20)}
_LARGE: dict[str, Any] = {"train": (0, 24), "test": (24, 48)}

CASES = (
    Case(same_different(**_SMALL)),
    Case(same_different(**_LARGE), {"dimension": 40, "seed": 1}),
    Case(aba_abb(**_SMALL)),
    Case(aba_abb(**_LARGE), {"readout_layers": 2}),
    Case(aabb_abab(**_SMALL), {"readout_layers": 2}),
    Case(match_to_sample(**_SMALL)),
    Case(match_to_sample(**_LARGE), {"dimension": 64, "seed": 2}),
    Case(random_task(5, 4, wildcards=2, seed=0, **_SMALL)),
    Case(random_task(4, 5, wildcards=2, regular=1, seed=1, **_SMALL), {"readout_layers": 2}),
    Case(copying(**_SMALL)),
    Case(copying("αββγ", "α", **_LARGE)),
    Case(copying("αβγδ", "β", **_LARGE), {"dimension": 192, "seed": 3}),
    Case(majority(3, **_SMALL)),
    Case(majority(5, **_SMALL)),
    Case(distribution_of_three(**_SMALL)),
    Case(identity_rules(**_LARGE)),
    Case(identity_rules(**_SMALL), {"readout_layers": 2}),
    Case(random_task(4, 4, wildcards=3, symbolic=True, seed=2, **_SMALL)),
)
"""Equality heads in all but the three copying tasks; copying heads in the last nine."""
