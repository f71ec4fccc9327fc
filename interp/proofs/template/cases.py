"""Template constructions over tasks, sizes, embeddings and seeds, as positives for role
detectors."""

from __future__ import annotations

from functools import partial
from typing import Any

from interp.proofs.case import Case
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

__all__ = ["CASES"]


def _case(task: TemplateTask, **options: Any) -> Case:
    """A named case: a task with the options of its construction."""
    name = "-".join([task.name, *(f"{k}={v}" for k, v in options.items())])
    return Case(name, partial(construct_template, task, **options))


_SMALL: dict[str, Any] = {"train": (0, 10), "test": (10, 20)}
_LARGE: dict[str, Any] = {"train": (0, 24), "test": (24, 48)}

CASES = (
    _case(same_different(**_SMALL)),
    _case(same_different(**_LARGE), dimension=40, seed=1),
    _case(aba_abb(**_SMALL)),
    _case(aba_abb(**_LARGE), readout_layers=2),
    _case(aabb_abab(**_SMALL), readout_layers=2),
    _case(match_to_sample(**_SMALL)),
    _case(match_to_sample(**_LARGE), dimension=64, seed=2),
    _case(random_task(5, 4, wildcards=2, seed=0, **_SMALL)),
    _case(random_task(4, 5, wildcards=2, regular=1, seed=1, **_SMALL), readout_layers=2),
    _case(copying(**_SMALL)),
    _case(copying("αββγ", "α", **_LARGE)),
    _case(copying("αβγδ", "β", **_LARGE), dimension=192, seed=3),
    _case(majority(3, **_SMALL)),
    _case(majority(5, **_SMALL)),
    _case(distribution_of_three(**_SMALL)),
    _case(identity_rules(**_LARGE)),
    _case(identity_rules(**_SMALL), readout_layers=2),
    _case(random_task(4, 4, wildcards=3, symbolic=True, seed=2, **_SMALL)),
)
"""The constructions: all but the three copying tasks have equality heads, the last nine copy."""
