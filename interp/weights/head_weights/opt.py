"""The layout of OPT: query, key, value and output in matrices of their own, with biases.

Its 350M member normalises after attention instead of before: there is then no norm to fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.config import count
from interp.weights.head_weights.layout import Layout, Part, PartName, Sizes, Tokens


def opt(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of an OPT whose tensors start with ``prefix``."""
    heads, width = count(config, "num_attention_heads"), count(config, "hidden_size")
    at = prefix + "layers.{layer}."
    attention, rows, bias = at + "self_attn.", "(h k) d -> h d k", "(h k) -> h k"
    parts: dict[PartName, Part] = {
        "W_Q": Part(attention + "q_proj.weight", rows),
        "W_K": Part(attention + "k_proj.weight", rows),
        "W_V": Part(attention + "v_proj.weight", rows),
        "W_O": Part(attention + "out_proj.weight", "d (h k) -> h k d"),
        "b_Q": Part(attention + "q_proj.bias", bias),
        "b_K": Part(attention + "k_proj.bias", bias),
        "b_V": Part(attention + "v_proj.bias", bias),
        "b_O": Part(attention + "out_proj.bias", "d -> d"),
    }
    before = bool(config.get("do_layer_norm_before", True))
    if before:
        parts["norm_gain"] = Part(at + "self_attn_layer_norm.weight", "d -> d")
        parts["norm_bias"] = Part(at + "self_attn_layer_norm.bias", "d -> d")
    embedded = count(config, "word_embed_proj_dim", width) == width
    tokens = Tokens.rows(prefix + "embed_tokens.weight", "lm_head.weight", tied=tied)
    return Layout(
        family="OPT",
        sizes=Sizes(count(config, "num_hidden_layers"), heads, heads, width, width // heads),
        parts=parts,
        attention=attention,
        norm="LayerNorm" if before else None,
        tokens=tokens if embedded else None,
    )
