"""Losses of a model's outputs, as an oracle: the engine has its own."""

import torch
from jaxtyping import Float
from torch import Tensor

from interp.tasks.base import Batch


def row_losses(output: Tensor, batch: Batch) -> Float[Tensor, " row"]:
    """Each row's mean loss over its scored positions: squared error, or nats for token targets."""
    losses, mask = position_losses(output, batch.targets), batch.mask.double()
    return (losses * mask).sum(1) / mask.sum(1).clamp_min(1)


def position_losses(output: Tensor, targets: Tensor) -> Float[Tensor, "*place"]:
    """The loss at each position: squared error averaged over channels, or cross-entropy in nats.

    Exponentials are taken in the output's precision (at least single), their logarithm in double.
    """
    output, targets = output.detach(), targets.to(output.device)
    if targets.is_floating_point():
        return (output.double() - targets.double()).square().mean(-1).cpu()
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    largest = output.amax(-1, keepdim=True)
    total = (output - largest).exp_().sum(-1).double().log() + largest[..., 0].double()
    return (total - output.gather(-1, targets.long()[..., None])[..., 0].double()).cpu()
