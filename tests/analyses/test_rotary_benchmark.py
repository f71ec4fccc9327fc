"""Circuits without added positions do what they are said to; planted heads stay as they were."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from analyses.benchmarks.circuits import Sizes, construct_circuit
from analyses.benchmarks.known import Built, load_back
from analyses.benchmarks.planted import Planting, plant_model, train_around
from analyses.benchmarks.rotary import (
    ROTARY,
    construct_rotary,
    construct_rotary_needed,
)
from analyses.benchmarks.rotary_formats import FORMATS, Format, RotarySizes

SIZES = {form: RotarySizes(form, 12, 28, 2, 1) for form in FORMATS}
RISES = {"induction": 1.0, "previous-negative": 0.02, "duplicate-negative": 0.02}
"""Nats that are lost on a row that repeats itself, without the circuit's last head."""


def rows(vocabulary: int = 12, period: int = 8) -> Tensor:
    """BOS, then some tokens three times over."""
    generator = torch.manual_seed(0)
    once = torch.stack([torch.randperm(vocabulary - 1, generator=generator) for _ in range(32)]) + 1
    return torch.cat([torch.zeros(32, 1).long(), *[once[:, :period]] * 3], dim=1)


def keys(role: str, tokens: Tensor) -> Tensor:
    """The keys of a role, ``[row, query, key]``."""
    place = torch.arange(tokens.shape[1])
    lag = place[:, None] - place
    same = (tokens[:, :, None] == tokens[:, None, :]) & (lag > 0)
    found = {
        "previous-token": (lag == 1).expand_as(same),
        "sink": (place == 0).expand_as(same),
        "duplicate-token": same,
        "induction": F.pad(same, (1, 0))[..., :-1],
    }
    return found[role]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ROTARY)
@torch.no_grad()
def test_every_head_attends_by_its_role(form: Format, kind: str) -> None:
    made, claims = construct_rotary(kind, SIZES[form], seed=3, hidden=True)
    made.eval()
    made.set_attn_implementation("eager")
    tokens = rows()
    patterns = made(tokens, output_attentions=True).attentions
    assert claims
    for _, layer, head, role, _ in claims:
        if role != "copying":
            share = (patterns[layer][:, head] * keys(role, tokens)).sum(-1)
            assert float(share[:, 12:].mean()) > 0.9, role


@pytest.mark.parametrize("form", FORMATS)
@torch.no_grad()
def test_a_random_basis_keeps_the_function_and_wirings_keep_the_attention(form: Format) -> None:
    tokens, sizes = rows(), SIZES[form]
    plain = construct_rotary("induction", sizes, seed=5)[0].eval()
    hidden = construct_rotary("induction", sizes, seed=5, hidden=True)[0].eval()
    found = [one(tokens).logits for one in (hidden, plain)]
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)  # norms are taken in float32
    embeddings = [one.get_input_embeddings().weight for one in (plain, hidden)]
    assert float((embeddings[0] - embeddings[1]).abs().max()) > 0.1
    silent, claims = construct_rotary("induction", sizes, seed=5, wiring="silent")
    assert claims == frozenset()
    for model in (plain, silent):
        model.eval()
        model.set_attn_implementation("eager")
    found = [one(tokens, output_attentions=True).attentions[1] for one in (plain, silent)]
    torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind"), [*zip(("llama", "pythia", "llama"), RISES, strict=True)])
@torch.no_grad()
def test_the_answer_depends_on_the_head(form: Format, kind: str, tmp_path: Path) -> None:
    made, claims = construct_rotary(kind, SIZES[form], seed=3)
    model: Any = load_back(Built(made, claims, frozenset(), 0), "rotary").model
    tokens = rows()
    layer, head = max((claim[1], claim[2]) for claim in claims)

    def even(pattern: Tensor, hook: object) -> Tensor:
        pattern = pattern.clone()
        pattern[:, head] = torch.ones(pattern.shape[-1], pattern.shape[-1]).tril()
        pattern[:, head] /= torch.arange(1, pattern.shape[-1] + 1)[:, None]
        return pattern

    def loss_on_repeat(logits: Tensor) -> float:
        return float(F.cross_entropy(logits[:, 9:-1].flatten(0, 1), tokens[:, 10:].flatten()))

    hooks = [(f"blocks.{layer}.attn.hook_pattern", even)]
    without = model.run_with_hooks(tokens, fwd_hooks=hooks)
    assert loss_on_repeat(without) - loss_on_repeat(model(tokens)) > RISES[kind]


@pytest.mark.parametrize("form", FORMATS)
@torch.no_grad()
def test_a_head_that_is_needed_takes_back_a_wrong_push(form: Format) -> None:
    sizes = replace(SIZES[form], heads=4)
    made, exempt = construct_rotary_needed("duplicate-token", sizes, seed=1)
    mine = {(0, head) for head in range(4)} - {
        claim[1:3] for claim in exempt if claim[3] == "duplicate-token"
    }
    (place,) = mine
    tokens, made = rows(), made.eval()
    own = made(tokens).logits.gather(-1, tokens[..., None])[:, 4:]
    assert float(own.abs().max()) < 2.0, "the push on the query's token is taken back"
    weight = _output(made, form)
    size = weight.shape[1] // 4
    weight[:, place[1] * size : (place[1] + 1) * size] = 0
    pushed = made(tokens).logits.gather(-1, tokens[..., None])[:, 4:]
    assert float(pushed.min()) > 4.0


def _output(model: Any, form: Format) -> Any:
    if form == "llama":
        return model.model.layers[0].self_attn.o_proj.weight
    return model.gpt_neox.layers[0].attention.dense.weight


def test_planted_heads_are_what_they_were_and_all_else_has_learned() -> None:
    sizes = Sizes(12, 18, 2, True)
    one = Planting("induction", sizes, 2, (0, 1), steps=20)
    made = construct_circuit("induction", sizes, seed=2)
    model, _ = train_around(one, 2)
    start, _ = train_around(replace(one, steps=0), 2)
    model.requires_grad_(False)
    start.requires_grad_(False)
    for part in made.mechanism.parts:
        attn, source = model.blocks[part.layer].attn, made.model.blocks[part.layer].attn
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            expected = getattr(source, name)[part.head].float()
            torch.testing.assert_close(getattr(attn, name)[part.head], expected)
        other = 1 - int(part.head or 0)
        assert float((attn.W_V - start.blocks[part.layer].attn.W_V)[other].abs().max()) > 1e-3
    assert float((model.blocks[0].mlp.W_in - start.blocks[0].mlp.W_in).abs().max()) > 1e-3


@pytest.mark.slow
def test_a_planted_circuit_is_located() -> None:
    built = plant_model(Planting("induction", Sizes(12, 20, 2, True), 2, (0, 1), steps=5), 3)
    assert {"previous-token", "induction"} <= {claim[3] for claim in built.truth}
