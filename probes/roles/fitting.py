"""What the surrogate of a component is made from: its confirmed role, and the model on the rows for
fitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.site import Site
from interp.run import Run
from interp.store.rows import AttentionMask, attention_mask_of
from interp.tasks.base import Memory
from probes.roles.selecting import Seen
from probes.roles.views import first_alone


def pattern_of(run: Run, layer: int, head: int) -> Float[Tensor, "row query key"]:
    """Return a head's attention pattern on the rows of a run, on the CPU."""
    site = Site(layer, "pattern", head)
    return run.at(site)[site].float().cpu()


def read_places(run: Run, layer: int) -> Bool[Tensor, "row pos"]:
    """Return the positions at which a layer's output can affect a scored output.

    Args:
        run: The model on some rows.
        layer: The layer.

    Returns:
        In the last layer the scored positions. In earlier layers, which later heads read, every
        position up to a row's last scored one, and every position where attention is not causal.
    """
    scored = run.batch.mask
    if layer == run.model.cfg.n_layers - 1:
        return scored
    return scored.flip(1).cummax(1).values.flip(1) if run.causal else torch.ones_like(scored)


@dataclass(frozen=True)
class Fitting:
    """What a role's surrogate, which runs in the component's place, is made from.

    Attributes:
        role: The confirmed row of the role table.
        run: The model on the rows for fitting.
        changed: The same run with surrogates, or means, in place of all components before this one.
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
        """The rule that says which keys a query may attend to."""
        return attention_mask_of(self.run.model) or AttentionMask(self.run.causal)

    @property
    def tokens(self) -> Tensor:
        """The inputs of the rows, ``[row, pos]`` for token ids."""
        return self.run.batch.inputs

    def head_attention(self) -> Seen:
        """Return the attention of the role's head on the rows for fitting; every query counts."""
        pattern = pattern_of(self.run, self.role.layer, self.role.head)
        inputs = self.run.batch.inputs
        begun = inputs.ndim == 2 and first_alone(inputs)
        counted = torch.ones(pattern.shape[:2], dtype=torch.bool)
        return Seen(pattern, inputs, counted, self.mask.keys(pattern.shape[-1]), begun)
