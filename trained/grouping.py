"""Decide which runs can be trained as one stack of models.

Runs share a stack if their models differ in nothing but numbers: initial weights, learning rates,
seeds, tasks of equal shapes, and the identity scalars' settings: the stack then has a·XXᵀ and b
(`template` §2.2) wherever one of its members has them, and holds them at zero in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from interp.models.spec import TransformerSpec
from trained.run import Run

__all__ = ["common_spec", "groups", "shape_of"]

_PROBE_ROWS = 2
_WITHOUT: dict[str, Any] = {
    "identity_qk": False,
    "identity_ov": False,
    "identity_mask_self": False,
    "identity_multiplier": 1.0,
}


def groups(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of the runs, one list for each stack that could be formed, in order of appearance."""
    found: dict[Any, list[int]] = {}
    for index, run in enumerate(runs):
        found.setdefault(shape_of(run), []).append(index)
    return list(found.values())


def shape_of(run: Run) -> tuple[Any, ...]:
    """A key that is equal for runs that fit into one stack."""
    training = run.training
    spec: Any = run.spec
    if isinstance(spec, TransformerSpec):
        spec = replace(spec, **_WITHOUT)
    batch = run.task.sample(_PROBE_ROWS, seed=0)
    return (
        spec,
        getattr(run.spec, "identity_mask_self", False),
        training.steps,
        training.batch,
        training.autocast,
        tuple(batch.inputs.shape[1:]),
        tuple(batch.targets.shape[1:]),
        str(batch.inputs.dtype),
        str(batch.targets.dtype),
    )


def common_spec(specs: Sequence[Any]) -> Any:
    """The spec of a stack, which has every parameter that any of its members has."""
    first = specs[0]
    if not isinstance(first, TransformerSpec):
        return first
    qk, ov = (any(getattr(s, name) for s in specs) for name in ("identity_qk", "identity_ov"))
    return replace(first, identity_qk=qk, identity_ov=ov, identity_multiplier=1.0)


def multipliers(specs: Sequence[Any]) -> torch.Tensor:
    """The factor on each member's identity scalars, ``[member]``."""
    return torch.tensor([getattr(spec, "identity_multiplier", 1.0) for spec in specs])
