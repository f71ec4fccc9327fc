"""Tiny GGUF files of Llamas that are known in float32, written by the package ``gguf``.

The writer's side of the format, by its specification: the names of tensors, and rows of queries
and keys in pairs for Llama's rotary positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["llama", "write_llama"]

_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def llama(**changes: Any) -> Any:
    """A Llama of random weights, gains included."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**{**_SIZES, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape)
            weight.copy_(noise * 0.3 if weight.ndim > 1 else 1 + noise * 0.2)
    return model.eval()


def write_llama(
    model: Any,
    file: Path,
    *,
    packed: str = "F32",
    architecture: str = "llama",
    entries: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    leave_out: str = "",
    words: bool = True,
) -> None:
    """Write a Llama as GGUF.

    Args:
        model: Of :func:`llama`.
        file: The file.
        packed: The format of matrices, such as ``Q4_1``.
        architecture: What the header calls it.
        entries: Further entries of the header, after the architecture's name.
        tensors: Further tensors.
        leave_out: The tensors whose names begin so are left out.
        words: Whether it has a tokenizer.
    """
    import gguf

    config = model.config
    file.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if packed == 'F32' else 'MOSTLY'}_{packed}"])
    writer.add_string("general.license", "apache-2.0")
    for key, value in (entries or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{key}", value)
    if words:
        _add_words(writer, config.vocab_size)
    for name, tensor in model.state_dict().items():
        renamed = _renamed(name)
        if leave_out and renamed.startswith(leave_out):
            continue
        values = tensor.numpy()
        if "q_proj" in name:
            values = _paired(values, config.num_attention_heads)
        if "k_proj" in name:
            values = _paired(values, config.num_key_value_heads)
        kind = gguf.GGMLQuantizationType[packed if values.ndim > 1 else "F32"]
        writer.add_tensor(renamed, gguf.quantize(values, kind), raw_dtype=kind)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str) -> str:
    layer = name.removeprefix("model.layers.")
    number, _, rest = layer.partition(".") if layer != name else ("", "", name)
    module, _, which = rest.rpartition(".")
    return f"blk.{number}.{_NAMES[module]}.{which}" if number else f"{_NAMES[module]}.{which}"


def _paired(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head so that those which are turned together lie side by side."""
    rows = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(matrix.shape))


def _add_words(writer: Any, vocabulary: int) -> None:
    """Pairs of bytes: letters and digits, and each of them after a space."""
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
    writer.add_add_bos_token(False)
