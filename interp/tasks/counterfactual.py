"""Counterfactual answers: the answer if one latent had the value that it has in another row.

A task is a small causal model: its latents are computed one from another, and the answer from the
last of them. A :class:`Variable` is one latent (or a few that are set together) that an
intervention can set. Its ``answer(base, source)`` returns the targets of the base rows if the
latent had its values from the source rows: latents that it is computed from keep their values,
latents that are computed from it follow.

    y = x[t−t_1], t_1 = g(a_t):     t_1 from the source     y = x_base[t − t_1,source]
                                    x[t−t_1] from it        y = x_source[t − t_1,source]

:mod:`probes.locate` finds the component of a trained model that has the same effect when it is
exchanged between the rows. This needs a task that names variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.tasks.base import Batch

UNKNOWN = -1
"""Token code for a counterfactual target that is not determined. A real target that is not
determined is NaN."""


@dataclass(frozen=True)
class Variable:
    """A latent that an intervention can set, and the answers that the task then has.

    Attributes:
        name: The name of the latent, as in ``batch.latents`` if it is a single one.
        answer: A function ``(base, source) → targets`` of the shape of a batch's targets. For every
            position t of the base row it returns the answer at t if the latent had its value from
            the source row. Rows are paired in order and have equal lengths. The answer is NaN, or
            :data:`UNKNOWN` for tokens, where it is not determined.
        everywhere: True if the latent is set at all positions of the row at once, because the
            answer at t reads it at positions before t; False if it is set at t alone.
        role: The role, ``counting`` or ``dense``, of a head that holds the latent, if exchanging
            the latent decides this role; empty if other evidence does.
    """

    name: str
    answer: Callable[[Batch, Batch], Tensor]
    everywhere: bool = False
    role: str = ""


def variables_of(task: Any) -> tuple[Variable, ...]:
    """Return the variables that a task names in its ``variables()``; none if it has no such
    method."""
    told = getattr(task, "variables", None)
    return () if told is None else tuple(told())


def role_variables(task: Any) -> tuple[Variable, ...]:
    """Return the variables whose exchange decides a head's role: counts and what depends on them,
    and the weights of an average."""
    return tuple(variable for variable in variables_of(task) if variable.role)


def unknown(targets: Tensor) -> Tensor:
    """Return which targets are not determined: a Boolean ``[batch, pos]``."""
    if targets.is_floating_point():
        return torch.isnan(targets).any(dim=-1)
    return targets == UNKNOWN
