"""What would the answer be if one latent had another row's value?

A task is a small causal model: its latents are computed one from another, and the answer from the
last of them. A :class:`Variable` is one latent (or a few that are set together) that an
intervention can set. Its ``answer(base, source)`` gives the targets of the base rows if the latent
had its values from the source rows: what it is computed from stays as it is, what is computed from
it follows.

    y = x[t−t_1], t_1 = g(a_t):     t_1 from the source     y = x_base[t − t_1,source]
                                    x[t−t_1] from it        y = x_source[t − t_1,source]

:mod:`probes.locate` asks of a trained model which component does the same when it is exchanged
between the rows. A task that names no variables cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.tasks.base import Batch

__all__ = ["UNKNOWN", "Variable", "unknown", "variables_of"]

UNKNOWN = -1
"""A token target that the task cannot tell; real ones are NaN."""


@dataclass(frozen=True)
class Variable:
    """A latent that can be set, and the answers it then gives.

    Attributes:
        name: The latent's, as in ``batch.latents`` where one is meant.
        answer: ``(base, source) → targets`` as those of a batch: for every position t of the base,
            the answer there if the latent were the source's. Rows are paired in order and have one
            length. NaN, or :data:`UNKNOWN` for tokens, where the answer is not determined.
        everywhere: The latent is set at all positions of the row at once, because positions before
            t are where the answer at t reads it; otherwise at t alone.
    """

    name: str
    answer: Callable[[Batch, Batch], Tensor]
    everywhere: bool = False


def variables_of(task: Any) -> tuple[Variable, ...]:
    """The variables a task names in its ``variables()``; none if it has no such method."""
    told = getattr(task, "variables", None)
    return () if told is None else tuple(told())


def unknown(targets: Tensor) -> Tensor:
    """True at ``[batch, pos]`` whose targets are not determined."""
    if targets.is_floating_point():
        return torch.isnan(targets).any(dim=-1)
    return targets == UNKNOWN
