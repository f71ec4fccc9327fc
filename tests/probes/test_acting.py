"""A head that looks back over the first positions alone: judged there, and so named."""

import pytest
import torch
from torch import Tensor, nn

import prooflens as pl
from interp.tasks.base import Batch
from probes.roles import find_roles
from probes.roles.acting import acting
from probes.roles.selecting import Seen

WORDS, LENGTH, ENDS = 40, 64, 20


def looking_back(share: float, ends: int = ENDS) -> Tensor:
    """``share`` of the attention on the token before up to a position, and none behind it."""
    pattern = torch.zeros(LENGTH, LENGTH, dtype=torch.float64)
    pattern[:, 0] = 1
    for t in range(1, ends):
        pattern[t, t - 1] = share
        pattern[t, t] = 1 - share
        pattern[t, 0] = share if t == 1 else 0
    return pattern


def head_attention(pattern: Tensor, rows: int = 12) -> Seen:
    allowed = torch.ones(LENGTH, LENGTH).bool().tril()
    inputs, counted = torch.zeros(rows, LENGTH).long(), torch.ones(rows, LENGTH).bool()
    return Seen(pattern.expand(rows, -1, -1), inputs, counted, allowed, False)


BEFORE = torch.eye(LENGTH).roll(-1, 1).tril().bool()[None]


def test_positions_are_found_and_the_share_there_is_told() -> None:
    found = acting(head_attention(looking_back(0.85)), BEFORE, 0.3, tokens=False)
    assert (found.first, found.last) == (1, ENDS - 1)
    assert found.share.score == pytest.approx(0.85)
    even = sum(1 / (t + 1) for t in range(1, ENDS)) / (ENDS - 1)
    assert found.excess.score == pytest.approx(0.85 - even)


@pytest.mark.parametrize("ends", [8, 15, LENGTH])
def test_a_few_positions_or_all_are_none(ends: int) -> None:
    assert acting(head_attention(looking_back(0.85, ends)), BEFORE, 0.3, tokens=False) is None


class Early(nn.Module):
    """One head, whose logits are ten times the one-hot token that it attends to."""

    def __init__(self) -> None:
        super().__init__()
        self.pattern, self.z = nn.Identity(), nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.one_hot(tokens, WORDS).double()
        n = tokens.shape[1]
        pattern = self.pattern(looking_back(0.85)[:n, :n].expand(len(x), 1, n, n))
        return 10 * self.z(torch.einsum("rhqk,rkd->rqhd", pattern, x)).sum(2)


def test_the_role_is_confirmed_and_says_over_which_positions() -> None:
    tokens = torch.stack([torch.randperm(WORDS)[torch.arange(LENGTH) % WORDS] for _ in range(32)])
    mask = torch.ones_like(tokens).bool()
    mask[:, 0] = False
    sites = {"blocks.0.attn.hook_pattern": "pattern", "blocks.0.attn.hook_z": "z"}
    model = pl.wrap(Early(), sites, example=tokens[:2])
    found = find_roles(model, Batch(tokens, tokens.roll(1, 1), mask), profile="language")
    (row,) = found[found["role"] == "previous-token"].itertuples()
    assert f"repeated rows at positions 1 to {ENDS - 1} 0.85" in row.evidence
    assert row.status == "confirmed"
