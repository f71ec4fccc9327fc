"""The layouts of Phi, Phi-3 and StableLM, under Llama's names but for their matrices and norms.

Phi calls the output matrix ``dense`` and runs attention and FFN side by side on one norm; Phi-3
stores query, key and value in one matrix, all query heads first; StableLM has LayerNorms. Phi and
StableLM turn part of a head. With ``qk_layernorm`` each head's queries and keys are centred and
scaled, which no gain can stand for: such a checkpoint is refused by the name of that norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.config import count
from interp.weights.head_weights.layout import Layout, Part, PartName
from interp.weights.head_weights.llama import llama_layout, llama_parts, sliding

PARALLEL = "parallel block: attention and FFN read the same stream, so no FFN acts between them"
_FUSED = "query, key and value are stored in one matrix"


def phi(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of Phi 1, 1.5 and 2."""
    parts, at = llama_parts(prefix), prefix + "layers.{layer}."
    _layer_norm(parts, at)
    parts["W_O"] = Part(at + "self_attn.dense.weight", "d (h k) -> h k d")
    parts["b_O"] = Part(at + "self_attn.dense.bias", "d -> d")
    share = float(config.get("partial_rotary_factor", 0.5))
    options: dict[str, Any] = {"norm": "LayerNorm", "rotary": share}
    return llama_layout(config, prefix, tied, "Phi", parts, (PARALLEL,), **options)


def phi3(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of Phi-3 and Phi-4."""
    parts = llama_parts(prefix)
    heads = count(config, "num_attention_heads")
    groups = count(config, "num_key_value_heads", heads)
    fused, begin = prefix + "layers.{layer}.self_attn.qkv_proj.weight", 0
    sides: tuple[tuple[PartName, int], ...] = (("W_Q", heads), ("W_K", groups), ("W_V", groups))
    for side, slots in sides:
        parts[side] = Part(fused, "(s k) d -> s d k", slots=(begin, begin + slots))
        begin += slots
    share = float(config.get("partial_rotary_factor", 1.0))
    notes = (_FUSED, *sliding(config))
    return llama_layout(config, prefix, tied, "Phi-3", parts, notes, rotary=share)


def stablelm(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of StableLM."""
    parts = llama_parts(prefix)
    _layer_norm(parts, prefix + "layers.{layer}.")
    share = float(config.get("partial_rotary_factor", 0.25))
    notes = (PARALLEL,) if config.get("use_parallel_residual") else ()
    options: dict[str, Any] = {"norm": "LayerNorm", "rotary": share}
    return llama_layout(config, prefix, tied, "StableLM", parts, notes, **options)


def _layer_norm(parts: dict[PartName, Part], at: str) -> None:
    """Give the norm before attention its bias; these families have no norms of queries and keys."""
    parts["norm_bias"] = Part(at + "input_layernorm.bias", "d -> d")
    del parts["q_gain"], parts["k_gain"]
