"""Tiny GGUF files of decoders that are known in float32, written by the package ``gguf``.

The writer's side of the format, by its specification: names of tensors and entries of the header;
rows of queries and keys in pairs for Llama's rotary positions; gains of Gemma and Nemotron, which
are kept around 0, around 1; GPT-2's matrices as ``[out, in]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["KINDS", "decoder", "write_gguf"]

_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_FINE = {"rms_norm_eps": 1e-4}
_GEMMA = {**_FINE, "head_dim": 256, "sliding_window": 5}


def _turning(theta: float, part: float = 1.0) -> dict[str, Any]:
    rotary = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": part}
    return {"rope_parameters": rotary, "partial_rotary_factor": part}


KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**_FINE, **_turning(100.0)}),
    "mistral": ("MistralForCausalLM", {**_FINE, **_turning(100.0), "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**_FINE, **_turning(100.0)}),
    "qwen3": ("Qwen3ForCausalLM", {**_FINE, **_turning(100.0), "head_dim": 128}),
    "gemma2": ("Gemma2ForCausalLM", {**_GEMMA, **_turning(100.0)}),
    "gemma3": ("Gemma3ForCausalLM", {**_GEMMA, "num_hidden_layers": 7}),
    "gpt2": ("GPT2LMHeadModel", {"max_position_embeddings": 1024, "layer_norm_epsilon": 1e-4}),
    "phi3": ("Phi3ForCausalLM", {**_FINE, **_turning(100.0)}),
    "starcoder2": ("Starcoder2ForCausalLM", _turning(1e4)),
    "stablelm": ("StableLmForCausalLM", _turning(1e4, 0.25)),
    "nemotron": ("NemotronForCausalLM", _turning(1e4, 0.5)),
}
"""Architecture → its class in transformers, and the entries of its configuration that are special
to it."""


def decoder(kind: str = "llama", **changes: Any) -> Any:
    """Return a small model of an architecture with random weights; its gains and biases are random
    too."""
    import transformers

    name, options = KINDS[kind]
    build = getattr(transformers, name)
    torch.manual_seed(0)
    model: Any = build(build.config_class(**{**_SIZES, **options, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape)
            weight.copy_(noise * 0.3 if weight.ndim > 1 else weight + noise * 0.2)
    return model.eval()


def write_gguf(
    model: Any,
    file: Path,
    kind: str = "llama",
    *,
    packed: str = "F32",
    stated: str = "",
    entries: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    leave_out: str = "",
) -> None:
    """Write a model as GGUF, with a tokenizer.

    Args:
        model: The model to write, as :func:`decoder` builds it.
        file: Where it is written.
        kind: The model's architecture, a key of the table of :func:`decoder`.
        packed: The format of matrices, such as ``Q4_1``.
        stated: What the header calls the architecture, if not what it is.
        entries: Further entries of the header, without the architecture's name.
        tensors: Further tensors.
        leave_out: The tensors whose names begin so are left out.
    """
    import gguf

    file.parent.mkdir(exist_ok=True)
    named = "llama" if kind == "mistral" else kind
    writer = gguf.GGUFWriter(file, stated or named)
    _add_header(writer, model.config, kind, packed)
    for key, value in (entries or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{stated or named}.{key}", value)
    _add_words(writer, model.config.vocab_size)
    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[named]
    names = gguf.get_tensor_name_map(known, model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        before, _, which = name.rpartition(".")
        renamed = f"{names.get_name(before)}.{which}"
        tied = model.config.tie_word_embeddings and name == "lm_head.weight"
        if tied or (leave_out and renamed.startswith(leave_out)):
            continue
        values = _gguf_tensor(name, tensor.numpy(), model.config, named)
        form = gguf.GGMLQuantizationType[packed if values.ndim > 1 else "F32"]
        writer.add_tensor(renamed, gguf.quantize(values, form), raw_dtype=form)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_header(writer: Any, config: Any, kind: str, packed: str) -> None:
    import gguf

    told = config.to_dict()
    rotary = config.to_dict().get("rope_parameters") or {}
    rotary = rotary.get("full_attention", rotary)
    head = told.get("head_dim") or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(told.get("intermediate_size") or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if "num_key_value_heads" in told and kind != "gpt2":
        writer.add_head_count_kv(config.num_key_value_heads)
    if "rms_norm_eps" in told:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name in ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"):
        if name in told:
            writer.add_layer_norm_eps(told[name])
    if rotary:
        writer.add_rope_freq_base(rotary["rope_theta"])
        part = rotary.get("partial_rotary_factor", 1)
        writer.add_rope_dimension_count(int(head * part))
    if kind in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    if kind.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind == "stablelm":
        writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if packed == 'F32' else 'MOSTLY'}_{packed}"])
    writer.add_string("general.license", "apache-2.0")


def _gguf_tensor(name: str, values: np.ndarray, config: Any, named: str) -> np.ndarray:
    """Return a tensor in the layout that GGUF files have."""
    if named == "llama" and "q_proj" in name:
        values = _pair_rows(values, config.num_attention_heads)
    if named == "llama" and "k_proj" in name:
        values = _pair_rows(values, config.num_key_value_heads)
    if named == "gpt2" and values.ndim > 1 and ".c_" in name:
        values = values.T
    if named in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        values = values + 1
    return np.ascontiguousarray(values)


def _pair_rows(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorder a head's rows so that the two coordinates of each rotation lie side by side."""
    rows = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return rows.swapaxes(1, 2).reshape(matrix.shape)


def _add_words(writer: Any, vocabulary: int) -> None:
    """Add a vocabulary to the file: letters and digits, and four letters with a space in front."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    after = [f"Ġ{letter}" for letter in "abcw"]
    words = ["<unk>", "<s>", "</s>", *letters, "Ġ", *after]
    words += [f"<{i}>" for i in range(vocabulary - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith("<") else 1 for word in words])
    writer.add_token_merges([f"Ġ {word[1:]}" for word in after])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
