"""Each adapter against the model itself: its attention pattern and output, from factors alone."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from same_head_weights import assert_same
from torch import Tensor

from interp.errors import ArgumentError, CheckpointError
from interp.weights.head_weights import HeadWeights, head_weights
from interp.weights.head_weights.layouts import FAMILIES
from interp.weights.head_weights.mapping import layout_of_mapping

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 20, "tie_word_embeddings": False}
LLAMA = {
    **SMALL, "hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
WIDE = {**LLAMA, "hidden_size": 16, "num_key_value_heads": 2}
FALCON = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, **SMALL}
MODELS = {
    "gpt2": ("GPT2LMHead", {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16,
                            "bos_token_id": 1, "eos_token_id": 2, **SMALL}),
    "gpt_neo": (
        "GPTNeo",
        {"hidden_size": 12, "num_layers": 2, "num_heads": 3, "intermediate_size": 8,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16, **SMALL},
    ),
    "gptj": ("GPTJ", {"n_embd": 12, "n_layer": 2, "n_head": 2, "rotary_dim": 4, **SMALL}),
    "gpt_neox": (
        "GPTNeoX",
        {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "rotary_pct": 0.5,
         "intermediate_size": 8, **SMALL},
    ),
    "opt": (
        "OPT",
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 8,
         "word_embed_proj_dim": 12, "max_position_embeddings": 16, **SMALL},
    ),
    "llama": ("Llama", LLAMA),
    "llama3": ("Llama", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral": ("Mistral", LLAMA),
    "qwen2": ("Qwen2", LLAMA),
    "qwen3": ("Qwen3", LLAMA),
    "gemma": ("Gemma", LLAMA),
    "gemma2": (
        "Gemma2", {**LLAMA, "query_pre_attn_scalar": 4, "attn_logit_softcapping": None},
    ),
    "gemma3_text": ("Gemma3", {**LLAMA, "query_pre_attn_scalar": 4}),
    "olmo": ("Olmo", LLAMA),
    "olmo2": ("Olmo2", LLAMA),
    "phi": ("Phi", {**WIDE, "partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", WIDE),
    "stablelm": ("StableLm", {**WIDE, "partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "falcon": ("Falcon", {**FALCON, "multi_query": False, "bias": True, "parallel_attn": False}),
    "falcon-7b": ("Falcon", {**FALCON, "multi_query": True}),
    "falcon-40b": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "bloom": ("Bloom", {"hidden_size": 16, "n_layer": 2, "n_head": 4, **SMALL}),
    "gpt_oss": (
        "GptOss",
        {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
         "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}  # fmt: skip
BY_LAYER = ("gemma3_text",)
SLOPES = [0.25, 0.0625, 0.015625, 0.00390625]  # of ALiBi with four heads

TOKENS = torch.tensor([[1, 2, 3, 4]])
"""Ids that every one of these models has; a wrapping is compared with the model on them."""


def build(name: str, folder: Path) -> torch.nn.Module:
    family, options = MODELS[name]
    suffix = "TextConfig" if family == "Gemma3" else "Config"
    config = getattr(transformers, family.removesuffix("LMHead") + suffix)(
        attn_implementation="eager", **options
    )
    model = getattr(transformers, family + ("Model" if family == "GPT2LMHead" else "ForCausalLM"))(
        config
    ).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # biases and gains too: the library starts them at 0 and 1
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    model.save_pretrained(folder)
    return model


def attention_of(model: torch.nn.Module, layer: int) -> torch.nn.Module:
    names = ("attn", "attn.attention", "self_attn", "attention", "self_attention")
    ends = tuple(f".{layer}.{name}" for name in names)
    return [m for n, m in model.named_modules() if n.endswith(ends)][-1]


def run(model: torch.nn.Module, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the attention layer got (already normed), its pattern, and what it wrote."""
    seen: dict[str, Tensor] = {}

    def look(module, args, kwargs, output):
        seen["x"] = args[0] if args else kwargs["hidden_states"]
        seen["out"], seen["pattern"] = output[0], output[1]
        if type(module).__name__ == "BloomAttention":  # it adds the stream itself
            seen["out"] = output[0] - args[1]

    handle = attention_of(model, layer).register_forward_hook(look, with_kwargs=True)
    tokens = torch.tensor([[3, 7, 7, 1, 9, 3]])
    with torch.no_grad():
        model(tokens, output_attentions=True)
    handle.remove()
    return seen["x"][0], seen["pattern"][0], seen["out"][0]


def rms(x: Tensor) -> Tensor:
    return (x.pow(2).mean(-1) + 1e-6).sqrt()


def pattern_from_factors(factors: HeadWeights, layer: int, x: Tensor, scale: float) -> Tensor:
    n, rows, family = len(x), [], factors.layout.family
    stack = factors.layer(layer)
    b_K = stack.read_if_there("b_K")
    by_lag = [stack.circuit("QK", lag=s if factors.layout.rope else 0) for s in range(n)]
    for head in range(factors.n_heads):
        scores = torch.full((n, n), -torch.inf)
        for i in range(n):
            for j in range(i + 1):
                left, right = by_lag[i - j].pair(head)
                query, key = x[i] @ left, x[j] @ right
                bias = by_lag[i - j].inner_bias(head)
                query = query if bias is None else query + bias
                key = key if b_K is None else key + b_K[head * len(b_K) // factors.n_heads]
                scores[i, j] = query @ key
        if stack.has("q_gain"):
            q, k = x @ stack.W_Q, x @ stack.W_K
            if family == "OLMo 2":  # normalised over all heads together
                q, k = (torch.cat(list(part), -1) for part in (q, k))
            else:
                q, k = q[head], k[head * len(k) // factors.n_heads]
            scores = scores / (rms(q)[:, None] * rms(k))
        scores = scores * scale
        if family == "BLOOM":
            scores = scores + SLOPES[head] * torch.arange(n)
        if stack.has("sinks"):
            sink = stack.read("sinks")[head].expand(n, 1)
            rows.append(torch.cat([scores, sink], 1).softmax(-1)[:, :-1])
        else:
            rows.append(scores.softmax(-1))
    return torch.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_pattern_and_output_of_the_model_follow_from_the_factors(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path)
    factors = head_weights(tmp_path)
    layer = 0
    x, pattern, out = run(model, layer)
    if name not in BY_LAYER:
        scale = 1.0 if name == "gpt_neo" else 1 / math.sqrt(factors.d_head)
        mine = pattern_from_factors(factors, layer, x, scale)
        torch.testing.assert_close(mine, pattern, atol=2e-5, rtol=1e-4)
    stack = factors.layer(layer)
    wrote = torch.zeros_like(out)
    ov = stack.circuit("OV")
    b_V = stack.read_if_there("b_V")
    for head in range(factors.n_heads):
        left, right = ov.pair(head)
        values = x @ left
        if b_V is not None:
            values = values + b_V[head * len(b_V) // factors.n_heads]
        wrote = wrote + pattern[head] @ values @ right.T
    b_O = stack.read_if_there("b_O")
    wrote = wrote if b_O is None else wrote + b_O
    torch.testing.assert_close(wrote, out, atol=2e-5, rtol=1e-4)


WRAPPED = ("gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "llama", "qwen2", "qwen3", "gemma2",
           "olmo", "olmo2", "phi", "phi3", "stablelm", "falcon", "falcon-7b", "bloom",
           "gpt_oss")  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_a_bridge_and_the_model_in_it_give_the_factors_of_their_checkpoint(
    name: str, tmp_path: Path
) -> None:
    from interp.models.pretrained import _bridge

    model = build(name, tmp_path)
    saved = head_weights(tmp_path)
    assert_same(head_weights(model), saved)
    bridge = _bridge(str(tmp_path), model, None, TOKENS)
    assert_same(head_weights(bridge), saved)
    trained = next(p for n, p in bridge.named_parameters() if re.search(r"0.*\.q(_proj)?\.", n))
    with torch.no_grad():
        trained += 1.0
    before = saved.layer(0).W_Q
    after = head_weights(bridge).layer(0).W_Q
    torch.testing.assert_close(after, before + 1.0)


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    from interp.models.pretrained import _bridge

    tied = {**MODELS["gpt2"][1], "tie_word_embeddings": True}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**tied)).eval()
    model.save_pretrained(tmp_path)
    saved = head_weights(tmp_path)
    assert_same(head_weights(model), saved)
    assert_same(head_weights(_bridge(str(tmp_path), model, None, TOKENS)), saved)


def test_a_bridge_with_processed_weights_is_read_as_it_stands(tmp_path: Path) -> None:
    from interp.models.pretrained import _bridge

    bridge: Any = _bridge(str(tmp_path), build("gpt2", tmp_path), None, TOKENS)
    bridge.enable_compatibility_mode()
    layer = head_weights(bridge).layer(1)
    torch.testing.assert_close(layer.W_Q, bridge.blocks[1].attn.W_Q.detach())
    torch.testing.assert_close(layer.W_O, bridge.blocks[1].attn.W_O.detach())
    assert torch.equal(layer.read("norm_gain"), torch.ones(12))
    assert not torch.allclose(layer.W_Q, head_weights(tmp_path).layer(1).W_Q)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("phi", "parallel block"),
        ("phi3", "stored in one matrix"),
        ("olmo", "no gains"),
        ("olmo2", "post-norm"),
        ("bloom", "ALiBi"),
        ("gpt_oss", "attention sinks"),
        ("gemma2", "sliding window"),
    ],
)
def test_what_a_circuit_does_not_show_is_a_note(name: str, told: str, tmp_path: Path) -> None:
    build(name, tmp_path)
    notes = head_weights(tmp_path).layout.notes
    assert any(told in note for note in notes), notes


def test_a_mapping_takes_slots_of_a_matrix_with_more_query_than_key_heads(tmp_path: Path) -> None:
    build("falcon-7b", tmp_path)
    matrix = {
        "name": "transformer.h.{layer}.self_attention.query_key_value.weight",
        "pattern": "(s k) d -> s d k",
    }
    output = "transformer.h.{layer}.self_attention.dense.weight"
    mapping = {
        "n_layers": 2, "n_heads": 4, "n_kv_heads": 1, "d_model": 16, "d_head": 4,
        "W_Q": {**matrix, "slots": [0, 4]}, "W_K": {**matrix, "slots": [4, 5]},
        "W_V": {**matrix, "slots": [5, 6]}, "W_O": {"name": output, "pattern": "d (h k) -> h k d"},
    }  # fmt: skip
    mapped, known = (head_weights(tmp_path, mapping=m).layer(1) for m in (mapping, None))
    for part in ("W_Q", "W_K", "W_V", "W_O"):
        assert torch.equal(mapped.read(part), known.read(part)), part
    mapping["W_Q"] = {**matrix, "slots": [0]}
    with pytest.raises(ArgumentError, match=r"W_Q\.slots must have at least 2 entries"):
        head_weights(tmp_path, mapping=mapping)
    mapping["W_Q"] = {**matrix, "slots": [3, 7]}
    with pytest.raises(CheckpointError, match=r"has 6 parts by .* no part 6"):
        head_weights(tmp_path, mapping=mapping).layer(0).read("W_Q")


@pytest.mark.parametrize(("rope", "said"), [
    ({"width": 7}, "rope.width must be even"),
    ({"width": 80}, "rope.width must be even and at most d_head"),
    ({"base": 10000}, "rope.width must be given.*rope.base must be a known key"),
    ({"width": 4, "theta": "x"}, "rope.theta must be a finite number"),
])  # fmt: skip
def test_a_mapping_with_impossible_positions_is_refused(rope: dict[str, Any], said: str) -> None:
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 8, "d_head": 8}
    results = {"W_Q": "h d k", "W_K": "g d k", "W_V": "g d k", "W_O": "h k d"}
    parts = {name: {"name": "{layer}", "pattern": f"{to} -> {to}"} for name, to in results.items()}
    with pytest.raises(ArgumentError, match=said):
        layout_of_mapping({**sizes, **parts, "rope": rope})


def rename(folder: Path, names: dict[str, str], **config: object) -> None:
    """Rename tensors of a checkpoint, and change its configuration."""
    file, told = folder / "model.safetensors", folder / "config.json"
    tensors = {names.get(name, name): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    told.write_text(json.dumps({**json.loads(told.read_text()), **config}))


def test_the_unembedding_is_the_one_that_the_row_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for tied unless it was called lm_head or embed_out."""
    build("llama", tmp_path)
    own = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    row = replace(FAMILIES["llama"], tokens=("embed_tokens.weight", "readout.weight"))
    monkeypatch.setitem(FAMILIES, "larma", row)
    rename(tmp_path, {"lm_head.weight": "readout.weight"}, model_type="larma",
           tie_word_embeddings=None)  # fmt: skip
    found = head_weights(tmp_path)
    assert torch.equal(found.token_matrix("unembedding"), own)
    assert not torch.equal(found.token_matrix("embedding"), own)
    assert "unembedding of its own" in found.analysed


def test_layers_that_the_configuration_does_not_count_are_named(tmp_path: Path) -> None:
    build("llama", tmp_path)
    assert not any("left out" in note for note in head_weights(tmp_path).layout.notes)
    rename(tmp_path, {}, num_hidden_layers=1)
    (note,) = (note for note in head_weights(tmp_path).layout.notes if "left out" in note)
    assert note.startswith("left out: layer 1 of the files")
