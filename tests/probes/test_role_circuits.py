"""Circuits of grouped-query attention, from the weights that transformers holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.errors import ArgumentError
from interp.interventions.patching import Receiver, paths_to
from interp.models.pretrained import load_pretrained
from interp.run.gate import next_tokens
from probes import fresh_models
from probes.roles import TASK, find_roles
from probes.roles.detectors.circuits import circuit_roles, identity_share
from probes.roles.effects import Effects
from probes.roles.examined import Examined
from probes.roles.gathering import evidence_of

HEADS, GROUPS, WIDTH, VOCABULARY = 4, 2, 16, 14


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Four query heads that share two keys and values; the second pair copies."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=16,
        hidden_size=WIDTH, intermediate_size=20, vocab_size=VOCABULARY, bos_token_id=0,
        max_position_embeddings=32, initializer_range=0.3,
    )).eval()  # fmt: skip
    with torch.no_grad():
        basis, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH))
        model.model.embed_tokens.weight.copy_(basis[:VOCABULARY])
        model.lm_head.weight.copy_(basis[:VOCABULARY])
        attn = model.model.layers[1].self_attn
        attn.v_proj.weight.view(GROUPS, 16, WIDTH)[1] = torch.eye(16)
        attn.o_proj.weight.view(WIDTH, HEADS, 16)[:, 2] = 2 * torch.eye(16)
        attn.o_proj.weight.view(WIDTH, HEADS, 16)[:, 3] = -2 * torch.eye(16)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return folder, model


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (24, 18), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def shares(model: Any, role: str, layer: int, head: int) -> tuple[float, float]:
    """From transformers' own layout, keys and values repeated for each query head."""
    attn = model.model.layers[layer].self_attn
    seen = tokens()[:, 1:].unique()
    w_e, w_u = (w.weight[seen].double() for w in (model.model.embed_tokens, model.lm_head))

    def of(projection: Any) -> Tensor:
        stack = projection.weight.double().view(-1, 16, WIDTH)
        return stack.repeat_interleave(HEADS // len(stack), 0)[head]

    if role == "symbol-equality":
        return identity_share((w_e @ of(attn.q_proj).T) @ (w_e @ of(attn.k_proj).T).T / 4)
    w_o = attn.o_proj.weight.double().view(WIDTH, HEADS, 16)[:, head]
    return identity_share(w_e @ of(attn.v_proj).T @ w_o.T @ w_u.T)


def test_heads_that_share_keys_and_values_have_their_groups(llama: tuple[Path, Any]) -> None:
    folder, hugging = llama
    batch = next_tokens(tokens())
    evidence = evidence_of(load_pretrained(folder).model, batch, TASK)
    found = list(circuit_roles(Examined(evidence, Effects(evidence))))
    assert len(found) == 2 * HEADS * 2
    for one in found:
        share, p = shares(hugging, one.role, one.layer, one.head)
        assert one.strength == pytest.approx(share, abs=1e-6)
        assert one.behaviour[0].p == pytest.approx(p, rel=1e-3)


@pytest.mark.slow
def test_a_grouped_models_copying_heads_are_found(
    llama: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 200)
    model, rows = load_pretrained(llama[0]).model, next_tokens(tokens())
    roles = find_roles(model, rows, profile="task", targets=False)  # nobody trained it on them
    copying = roles[roles["role"] == "copying"]
    assert copying[["layer", "head"]].to_numpy().tolist() == [[1, 2], [1, 3]]
    assert copying["strength"].tolist() == pytest.approx([1.0, -1.0], abs=0.01)
    assert (copying["status"] == "confirmed").all()


def test_shared_keys_are_counted_as_receivers(llama: tuple[Path, Any]) -> None:
    model, rest = load_pretrained(llama[0]).model, (None, "mean", None, 0, 1024)
    assert len(paths_to(model, tokens(), Receiver("k", 1, 1), *rest)) == HEADS + 2
    assert len(paths_to(model, tokens(), Receiver("q", 1, 3), *rest)) == HEADS + 2
    with pytest.raises(ArgumentError, match="head must be one of the 2 v heads of layer 1, got 3"):
        paths_to(model, tokens(), Receiver("v", 1, 3), *rest)
