"""Circuits of low rank: what is planted, against the matrices themselves."""

import pytest
import torch

from analyses.benchmarks.low_rank import low_rank, plant_low_rank


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_planted_circuits_lead_on_their_diagonals(seed: int) -> None:
    """Over tokens: the diagonals of the two planted heads are far above chance; of the others the
    diagonal is small or negative, or they have as much on the other token of the pair."""
    one = plant_low_rank(seed)
    model, attn = one.model, one.model.blocks[0].attn
    tokens, d_head = len(model.W_E), attn.W_Q.shape[-1]
    assert tokens >= 8 * d_head
    embedded = model.W_E
    equality = one.roles["symbol-equality"]
    asked = (embedded @ attn.W_Q[equality]) @ (embedded @ attn.W_K[equality]).mT
    copying = one.roles["copying"]
    written = embedded @ attn.W_V[copying] @ attn.W_O[copying] @ model.W_U
    for found in (asked, written * written.trace().sign()):
        assert float(found.diagonal().mean()) > 3 * float(found.abs().mean())
    pair = torch.arange(tokens).roll(tokens // 2)
    assert embedded[:, : 2 * d_head].equal(embedded[pair, : 2 * d_head])
    for head in {*range(4)} - {equality, copying}:
        other = (embedded @ attn.W_Q[head]) @ (embedded @ attn.W_K[head]).mT
        own, swapped = other.diagonal().mean(), other[torch.arange(tokens), pair].mean()
        assert float(own) < 0.2 * float(asked.diagonal().mean()) or swapped > 0.8 * own


@pytest.mark.slow
def test_planted_circuits_are_found_and_lookalikes_are_not() -> None:
    found = low_rank(2, tune=True)
    assert found["recall"] == {"symbol-equality": 1.0, "copying": 1.0}
    assert found["decoys"] == 12
    assert found["decoy_rate"] == 0.0
