"""Who does what in a model that was trained, by attention and by ablation: hooks of our own.

Apart from the role engine: other code, and levels far from its floors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from analyses.benchmarks.known import Claim
from analyses.benchmarks.scoring import COMPOSED
from prooflens.architectures import SequenceTransformer
from prooflens.tasks import Batch

__all__ = ["locate_roles"]

_UNLOCATED = ("copying", "positional", "bos-gated", *COMPOSED)
"""Roles whose heads are not located by this method. They are exempt."""


@torch.no_grad()
def locate_roles(
    model: SequenceTransformer, own: Batch, repeated: Batch
) -> tuple[frozenset[Claim], frozenset[Claim]]:
    """Find the roles in a trained model by attention on repeated tokens and by mean ablation.

    A head has a role with at least 0.4 of its attention on the role's keys and at least 0.2 nats of
    loss on either set of rows when it is ablated. This may be by itself, or beside all others that
    attend so, because of heads that stand in for each other none is missed alone. With less than
    0.15 or less than 0.02 nats it does not have the role; in between it is exempt. Induction also
    needs an earlier head with the role previous-token. Roles in :data:`_UNLOCATED` are exempt.

    Returns:
        The true claims, and the exempt ones.
    """
    truth, exempt, writers = set[Claim](), set[Claim](), False
    shares = _shares(model, repeated)
    for (layer, head), found in sorted(shares.items()):
        exempt |= {("head", layer, head, role, "") for role in _UNLOCATED}
        for role, share in found.items():
            claim = ("head", layer, head, role, "")
            alike = [place for place, some in shares.items() if some[role] >= 0.15]
            rise = max(
                _greatest_rise(model, (layer, head), alike, batch) for batch in (own, repeated)
            )
            has, may = share >= 0.4 and rise >= 0.2, share >= 0.15 and rise >= 0.02
            if role == "induction":
                has, may = has and writers, may and layer > 0
            (truth if has else exempt if may else set()).add(claim)
        writers |= any(c[3] == "previous-token" and c[1] == layer for c in truth)
    return frozenset(truth), frozenset(exempt)


def _shares(model: SequenceTransformer, batch: Batch) -> dict[tuple[int, int], dict[str, float]]:
    """Return each head's mean attention to the keys of each role, at scored positions."""
    tokens, n = batch.inputs, batch.inputs.shape[1]
    lag = torch.arange(n)[:, None] - torch.arange(n)
    same = (tokens[:, :, None] == tokens[:, None, :]) & (lag > 0)
    keys = {
        "previous-token": (lag == 1).expand(len(tokens), -1, -1),
        "sink": (torch.arange(n) == 0).expand(len(tokens), n, -1),
        "duplicate-token": same,
        "induction": F.pad(same, (1, 0))[..., :-1],
    }
    _, cache = model.run_with_cache(tokens, return_cache_object=False)
    found = {}
    for layer in range(model.spec.n_layers):
        pattern: Tensor = cache[f"blocks.{layer}.attn.hook_pattern"]
        for head in range(pattern.shape[1]):
            found[layer, head] = {
                role: float((pattern[:, head] * wanted).sum(-1)[batch.mask].mean())
                for role, wanted in keys.items()
            }
    return found


def _greatest_rise(
    model: SequenceTransformer,
    place: tuple[int, int],
    alike: Sequence[tuple[int, int]],
    batch: Batch,
) -> float:
    """Return the larger of two rises of the loss: without the head, and without it when the others
    that attend alike are ablated already."""
    others = [other for other in alike if other != place]
    beside = _rise(model, [*others, place], batch) - _rise(model, others, batch)
    return max(_rise(model, [place], batch), beside)


@torch.no_grad()
def _rise(model: SequenceTransformer, places: Sequence[tuple[int, int]], batch: Batch) -> float:
    """Return the rise of the loss when the z of some heads is replaced by its mean over rows, in
    nats."""

    def average_head(z: Tensor, hook: Any, head: int) -> Tensor:
        z = z.clone()
        z[:, :, head] = z[:, :, head].mean(0)
        return z

    hooks = [
        (f"blocks.{layer}.attn.hook_z", partial(average_head, head=head)) for layer, head in places
    ]
    without = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
    losses = [
        F.cross_entropy(output[batch.mask], batch.targets[batch.mask])
        for output in (without, model(batch.inputs))
    ]
    return float(losses[0] - losses[1])
