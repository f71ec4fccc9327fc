"""What a program is made from: a confirmed role, and the model on the rows it is fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.site import Site
from interp.run import Run
from interp.store.rows import AttentionMask, attention_mask_of
from interp.tasks.base import Memory
from probes.roles.selecting import Seen
from probes.roles.views import first_alone


def pattern_of(run: Run, layer: int, head: int) -> Float[Tensor, "row query key"]:
    """A head's attention on the rows of a run."""
    site = Site(layer, "pattern", head)
    return run.at(site)[site].float().cpu()


@dataclass(frozen=True)
class Fitting:
    """What a role's surrogate is made from.

    Attributes:
        role: The confirmed row of the role table.
        run: The model on the rows that numbers are fitted on.
        changed: The same with programs, or means, in place of all components before this one.
        memories: The contents that the task says are fetched.
        answers: Latent → the latents that it is computed from.
    """

    role: Any
    run: Run
    changed: Run
    memories: Sequence[Memory] = ()
    answers: Mapping[str, Sequence[str]] | None = None

    @property
    def mask(self) -> AttentionMask:
        """Which keys a query may attend to."""
        return attention_mask_of(self.run.model) or AttentionMask(self.run.causal)

    @property
    def tokens(self) -> Tensor:
        """The tokens of the rows."""
        return self.run.batch.inputs

    def head_attention(self) -> Seen:
        """The head's attention on the rows."""
        pattern = pattern_of(self.run, self.role.layer, self.role.head)
        inputs = self.run.batch.inputs
        begun = inputs.ndim == 2 and first_alone(inputs)
        counted = torch.ones(pattern.shape[:2], dtype=torch.bool)
        return Seen(pattern, inputs, counted, self.mask.keys(pattern.shape[-1]), begun)
