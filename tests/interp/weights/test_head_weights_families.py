"""Each adapter against the model itself: its attention pattern and output, from factors alone."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from same_head_weights import assert_same

from analyses.benchmarks.family_cases import CASES, write
from analyses.benchmarks.family_cells import FamilyModel, attention_in_out, weights
from interp.errors import ArgumentError, CheckpointError
from interp.models.pretrained import _bridge
from interp.weights.head_weights import head_weights
from interp.weights.head_weights.layouts import FAMILIES
from interp.weights.head_weights.mapping import layout_of_mapping

transformers = pytest.importorskip("transformers")

CHANGED: dict[str, dict[str, Any]] = {
    "GPT-2": {}, "GPT-2, untied": {}, "GPT-Neo": {}, "GPT-J": {}, "GPT-NeoX, parallel": {},
    "OPT": {}, "Llama": {}, "Llama 3, scaled rotary": {}, "Mistral, window": {}, "Qwen 2": {},
    "Qwen 3": {}, "Gemma": {}, "Gemma 2": {}, "OLMo": {"clip_qkv": None},
    "OLMo 2": {}, "Phi": {"qk_layernorm": False}, "Phi 3": {}, "StableLM": {},
    "Falcon 7B": {}, "Falcon 40B": {}, "Falcon, ALiBi": {"alibi": False}, "BLOOM": {},
    "GPT-OSS": {},
}  # fmt: skip
"""Family → what is other than in its case."""
ALONE = ("Llama 3, scaled rotary", "Mistral, window", "Gemma", "Falcon 40B")
WRAPPED = [name for name in CHANGED if name not in ALONE]
TOKENS = torch.tensor([[1, 2, 3, 4]])
"""Ids that every one of these models has; a wrapping is compared with the model on them."""


def build(name: str, folder: Path) -> Any:
    (case,) = (case for case in CASES if case.name == name)
    write(replace(case, options={**case.options, **CHANGED.get(name, {})}), folder)
    kind = getattr(transformers, case.model)
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", CHANGED)
def test_pattern_and_output_of_the_model_follow_from_the_factors(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path)
    assert weights(FamilyModel(tmp_path, None, model, tmp_path)) < 2e-5


@torch.no_grad()
def test_what_heads_of_gemma_3_write_follows_though_their_positions_do_not(tmp_path: Path) -> None:
    of = FamilyModel(tmp_path, None, build("Gemma 3", tmp_path), tmp_path)
    x, wrote = attention_in_out(of, 0)
    layer = head_weights(tmp_path).layer(0)
    W_V = layer.W_V.repeat_interleave(2, 0)
    found = torch.einsum("rhqk,rkd,hde,hem->rqm", of.patterns[0], x, W_V, layer.W_O)
    torch.testing.assert_close(found, wrote, atol=2e-5, rtol=1e-4)
    with pytest.raises(CheckpointError, match="rotary scaling 'by layer' is not known"):
        weights(of)


@pytest.mark.parametrize("name", WRAPPED)
def test_a_bridge_and_the_model_in_it_give_the_factors_of_their_checkpoint(
    name: str, tmp_path: Path
) -> None:
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


def test_a_bridge_with_processed_weights_is_read_as_it_stands(tmp_path: Path) -> None:
    bridge: Any = _bridge(str(tmp_path), build("GPT-2, untied", tmp_path), None, TOKENS)
    bridge.enable_compatibility_mode()
    layer = head_weights(bridge).layer(1)
    torch.testing.assert_close(layer.W_Q, bridge.blocks[1].attn.W_Q.detach())
    torch.testing.assert_close(layer.W_O, bridge.blocks[1].attn.W_O.detach())
    assert torch.equal(layer.read("norm_gain"), torch.ones(32))
    assert not torch.allclose(layer.W_Q, head_weights(tmp_path).layer(1).W_Q)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Phi", "parallel block"),
        ("Phi 3", "stored in one matrix"),
        ("OLMo", "no gains"),
        ("OLMo 2", "post-norm"),
        ("BLOOM", "ALiBi"),
        ("GPT-OSS", "attention sinks"),
        ("Gemma 2", "sliding window"),
    ],
)
def test_what_a_circuit_does_not_show_is_a_note(name: str, told: str, tmp_path: Path) -> None:
    build(name, tmp_path)
    notes = head_weights(tmp_path).layout.notes
    assert any(told in note for note in notes), notes


def test_a_mapping_takes_slots_of_a_matrix_with_more_query_than_key_heads(tmp_path: Path) -> None:
    build("Falcon 7B", tmp_path)
    matrix = {
        "name": "transformer.h.{layer}.self_attention.query_key_value.weight",
        "pattern": "(s k) d -> s d k",
    }
    output = "transformer.h.{layer}.self_attention.dense.weight"
    mapping = {
        "n_layers": 2, "n_heads": 4, "n_kv_heads": 1, "d_model": 32, "d_head": 8,
        "W_Q": {**matrix, "slots": [0, 4]}, "W_K": {**matrix, "slots": [4, 5]},
        "W_V": {**matrix, "slots": [5, 6]}, "W_O": {"name": output, "pattern": "d (h k) -> h k d"},
    }  # fmt: skip
    mapped, known = (head_weights(tmp_path, mapping=m).layer(1) for m in (mapping, None))
    for part in ("W_Q", "W_K", "W_V", "W_O"):
        assert torch.equal(mapped.read(part), known.read(part)), part
    (note,) = layout_of_mapping(mapping).notes
    assert "folding it changes nothing" in note
    gain = {"name": "transformer.h.{layer}.ln_attn.weight", "pattern": "d -> d"}
    assert layout_of_mapping({**mapping, "norm_bias": gain}).notes == ()
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
    build("Llama", tmp_path)
    own = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    row = replace(FAMILIES["llama"], tokens=("embed_tokens.weight", "readout.weight"))
    monkeypatch.setitem(FAMILIES, "larma", row)
    rename(tmp_path, {"lm_head.weight": "readout.weight"}, model_type="larma",
           tie_word_embeddings=None)  # fmt: skip
    found = head_weights(tmp_path)
    assert torch.equal(found.token_matrix("unembedding"), own)
    assert not torch.equal(found.token_matrix("embedding"), own)
    assert "unembedding of its own" in found.analysed


@pytest.mark.parametrize("prefix", ["model.", "language_model."])
def test_an_unembedding_with_a_prefix_is_read(prefix: str, tmp_path: Path) -> None:
    """It was said to be there, and then not to be found."""
    build("Llama", tmp_path)
    own = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    rename(tmp_path, {"lm_head.weight": prefix + "lm_head.weight"})
    assert torch.equal(head_weights(tmp_path).token_matrix("unembedding"), own)


def test_layers_that_the_configuration_does_not_count_are_named(tmp_path: Path) -> None:
    build("Llama", tmp_path)
    assert not any("left out" in note for note in head_weights(tmp_path).layout.notes)
    rename(tmp_path, {}, num_hidden_layers=1)
    (note,) = (note for note in head_weights(tmp_path).layout.notes if "left out" in note)
    assert note.startswith("left out: layer 1 of the files")
