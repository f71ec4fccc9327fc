"""Metrics against sums written out."""

import math

import pytest
import torch
from torch import Tensor, nn

from interp.tasks.base import Batch
from trained.metrics import loss_of, mean_loss, scores

MASK = torch.tensor([[False, True, True], [False, True, False]])


class Says(nn.Module):
    """A model that gives a fixed output."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = nn.Parameter(output)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output


def test_tokens() -> None:
    targets = torch.tensor([[9, 0, 1], [9, 1, 9]])
    output = torch.zeros(2, 3, 2)
    output[0, 1, 0], output[0, 2, 0], output[1, 1, 1] = 2.0, 1.0, 3.0
    batch = Batch(torch.zeros(2, 3, dtype=torch.long), targets, MASK)
    losses = [math.log1p(math.exp(-2)), math.log1p(math.exp(1)), math.log1p(math.exp(-3))]
    found = scores(Says(output), batch)
    entropy = -(1 / 3 * math.log(1 / 3) + 2 / 3 * math.log(2 / 3))
    assert found == pytest.approx(
        {
            "loss": sum(losses) / 3,
            "error": sum(losses) / 3 / entropy,
            "accuracy": 2 / 3,
            "exact": 0.5,
        }
    )


def test_reals() -> None:
    targets = torch.tensor([[[float("nan")], [1.0], [-1.0]], [[5.0], [1.0], [5.0]]])
    output = torch.tensor([[[0.0], [0.5], [0.5]], [[0.0], [2.0], [0.0]]])
    batch = Batch(torch.zeros(2, 3, 1), targets, MASK)
    found = scores(Says(output), batch)
    loss = (0.25 + 2.25 + 1) / 3
    variance = 1 - (1 / 3) ** 2
    assert found == pytest.approx(
        {"loss": loss, "error": loss / variance, "accuracy": 2 / 3, "exact": 0.5}
    )


def test_a_target_that_never_changes_has_no_error() -> None:
    batch = Batch(torch.zeros(1, 2, 1), torch.ones(1, 2, 1), torch.ones(1, 2, dtype=torch.bool))
    assert math.isnan(scores(Says(torch.ones(1, 2, 1)), batch)["error"])


@pytest.mark.parametrize("tokens", [True, False])
def test_stacked_losses_are_each_models_own(tokens: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    output = torch.randn(4, 2, 3, 5, generator=generator, requires_grad=True)
    mask = MASK.expand(4, 2, 3)
    if tokens:
        targets = torch.randint(5, (4, 2, 3), generator=generator).where(mask, -1)
    else:
        targets = torch.randn(4, 2, 3, 5, generator=generator).where(mask[..., None], torch.nan)
    found = mean_loss(output, targets, mask)
    for member in range(4):
        batch = Batch(torch.empty(2, 3), targets[member], MASK)
        torch.testing.assert_close(found[member], loss_of(output[member], batch).mean())
    (gradient,) = torch.autograd.grad(found.sum(), output)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
