"""What heads fetch, and what is read of it: against direct loops and the model's own weights."""

from typing import Any

import pytest
import torch

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.induction import RepeatedTokens
from probes.roles import LANGUAGE
from probes.roles.detectors.composition import Fetching, Reading
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of

SPEC = TransformerSpec(
    input="tokens",
    d_in=14,
    d_out=14,
    n_ctx=16,
    d_model=12,
    n_layers=3,
    n_heads=2,
    d_head=6,
    positions="learned",
    norm="layernorm",
    dtype="float64",
)


@pytest.fixture(scope="module")
def reading() -> Reading:
    model = SequenceTransformer(SPEC, seed=4).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.mul_(6)
    rows = RepeatedTokens(14, 16, (4, 7), bos=-1).sample(12, seed=5)
    return Reading(Effects(evidence_of(model, rows, LANGUAGE)))


def test_a_head_fetches_the_token_with_half_of_its_attention(reading: Reading) -> None:
    inputs = reading.evidence.batch("repeated").inputs
    (pattern,) = reading.evidence.patterns("repeated", 1)
    found, none = Fetching(reading.evidence).by("repeated", 1), 0
    for row in range(len(inputs)):
        for head in range(2):
            for at in range(16):
                shares = [0.0] * 14
                for key in range(at + 1):
                    shares[int(inputs[row, key])] += float(pattern[row, head, at, key])
                most = max(range(14), key=lambda token: shares[token])
                token = int(found.tokens[row, head, at])
                none += token == -1
                assert token == (most if shares[most] >= 0.5 else -1)
                keys = [key for key in range(at + 1) if int(inputs[row, key]) == most]
                best = max(keys, key=lambda key: float(pattern[row, head, at, key]))
                assert int(found.places[row, head, at]) == best
    assert 20 < none < 300


@pytest.mark.parametrize("read_as", ["q", "k"])
@torch.no_grad()
def test_attention_without_what_was_read_is_that_of_the_weights(
    reading: Reading, read_as: Any
) -> None:
    """Layer 2 reads heads of layers 0 and 1: only its queries, or only its keys, lose them."""
    model, writers = reading.evidence.model, ((0, 1), (1, 0))
    found = reading.attention("repeated", (2, 1), writers, read_as)
    inputs = reading.evidence.batch("repeated").inputs
    clean, without = streams(model, inputs, writers)
    attn = model.blocks[2].attn
    of_queries, of_keys = (without, clean) if read_as == "q" else (clean, without)
    q, k = of_queries @ attn.W_Q[1] + attn.b_Q[1], of_keys @ attn.W_K[1] + attn.b_K[1]
    scores = (q @ k.mT / SPEC.d_head**0.5).masked_fill(
        ~torch.ones(16, 16, dtype=torch.bool).tril(), -torch.inf
    )
    torch.testing.assert_close(found, scores.softmax(-1))


@torch.no_grad()
def test_values_without_what_was_read_are_those_of_the_weights(reading: Reading) -> None:
    model, writers = reading.evidence.model, ((1, 1),)
    inputs = reading.evidence.batch("repeated").inputs
    _, without = streams(model, inputs, writers)
    attn = model.blocks[2].attn
    _, cache = model.run_with_cache(inputs, return_cache_object=False)
    values = without @ attn.W_V[0] + attn.b_V[0]
    expected = cache["blocks.2.attn.hook_pattern"][:, 0] @ values @ attn.W_O[0]
    written = reading.write_without("repeated", (2, 0), writers) @ attn.W_O[0]
    torch.testing.assert_close(written, expected)
    edits = reading.unread("repeated", (2, 0), writers)
    change = expected - cache["blocks.2.attn.hook_pattern"][:, 0] @ (
        (model.blocks[2].ln1(cache["blocks.2.hook_resid_pre"]) @ attn.W_V[0] + attn.b_V[0])
        @ attn.W_O[0]
    )
    logits = model.unembed(model.ln_final(cache["blocks.2.hook_resid_post"] + change))
    run = reading.evidence.run("repeated").with_(*edits)
    for places, output in run.outputs():
        torch.testing.assert_close(output, logits[places.rows, places.positions])


def test_the_loudest_others_are_those_of_the_same_layers(reading: Reading) -> None:
    assert reading.loudest("repeated", ((0, 1), (1, 0))) in ([(0, 0), (1, 1)], [(1, 1), (0, 0)])
    assert reading.lacks() == []


def streams(
    model: Any, inputs: torch.Tensor, writers: tuple[tuple[int, int], ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What layer 2 reads: as it is, and without what some heads wrote beyond its mean over rows."""
    _, cache = model.run_with_cache(inputs, return_cache_object=False)
    stream = without = cache["blocks.2.hook_resid_pre"]
    for layer, head in writers:
        write = (
            cache[f"blocks.{layer}.attn.hook_z"][:, :, head] @ model.blocks[layer].attn.W_O[head]
        )
        without = without - (write - write.mean(0))
    return model.blocks[2].ln1(stream), model.blocks[2].ln1(without)
