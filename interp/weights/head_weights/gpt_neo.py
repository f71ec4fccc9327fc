"""The layouts of EleutherAI's models: GPT-Neo, GPT-J and GPT-NeoX (Pythia).

GPT-Neo and GPT-J keep query, key and value apart, output dimension first; GPT-NeoX stores them
head by head in one matrix (head, then query/key/value). GPT-J turns neighbouring coordinates,
NeoX coordinates half the rotary width apart; both turn only part of a head. GPT-Neo does not
divide scores by √d_head, which no metric here sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.config import count, rope_of
from interp.weights.head_weights.layout import Layout, Part, PartName, Sizes, Tokens
from interp.weights.head_weights.rope import Rope


def gpt_neo(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of GPT-Neo: learned positions; every other layer attends locally."""
    at = prefix + "h.{layer}."
    return Layout(
        family="GPT-Neo",
        sizes=_sizes(config, "num_layers", "num_heads", "hidden_size"),
        parts=_apart(at + "attn.attention.", at + "ln_1."),
        attention=at + "attn.",
        norm="LayerNorm",
        tokens=Tokens.rows(prefix + "wte.weight", "lm_head.weight", tied=tied),
    )


def gpt_j(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of GPT-J: rotary positions on neighbouring coordinates, attention and FFN in
    parallel."""
    at = prefix + "h.{layer}."
    sizes = _sizes(config, "n_layer", "n_head", "n_embd")
    return Layout(
        family="GPT-J",
        sizes=sizes,
        parts=_apart(at + "attn.", at + "ln_1."),
        attention=at + "attn.",
        norm="LayerNorm",
        rope=Rope(width=count(config, "rotary_dim", sizes.d_head), neighbours=True),
        tokens=Tokens.rows(prefix + "wte.weight", "lm_head.weight", tied=tied),
    )


def gpt_neox(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of GPT-NeoX and Pythia: one matrix for query, key and value, head by head."""
    at = prefix + "layers.{layer}."
    sizes = _sizes(config, "num_hidden_layers", "num_attention_heads", "hidden_size")
    fused, bias = at + "attention.query_key_value.weight", at + "attention.query_key_value.bias"
    by_head = "(h p k) d -> p h d k"
    parts: dict[PartName, Part] = {
        "W_Q": Part(fused, by_head, 0),
        "W_K": Part(fused, by_head, 1),
        "W_V": Part(fused, by_head, 2),
        "W_O": Part(at + "attention.dense.weight", "d (h k) -> h k d"),
        "b_Q": Part(bias, "(h p k) -> p h k", 0),
        "b_K": Part(bias, "(h p k) -> p h k", 1),
        "b_V": Part(bias, "(h p k) -> p h k", 2),
        "b_O": Part(at + "attention.dense.bias", "d -> d"),
        "norm_gain": Part(at + "input_layernorm.weight", "d -> d"),
        "norm_bias": Part(at + "input_layernorm.bias", "d -> d"),
    }
    return Layout(
        family="GPT-NeoX",
        sizes=sizes,
        parts=parts,
        attention=at + "attention.",
        norm="LayerNorm",
        rope=rope_of(config, sizes.d_head, share=float(config.get("rotary_pct", 1.0))),
        tokens=Tokens.rows(prefix + "embed_in.weight", "embed_out.weight", tied=tied),
    )


def _sizes(config: Mapping[str, Any], layers: str, heads: str, width: str) -> Sizes:
    n_heads, d_model = count(config, heads), count(config, width)
    return Sizes(count(config, layers), n_heads, n_heads, d_model, d_model // n_heads)


def _apart(attention: str, norm: str) -> dict[PartName, Part]:
    """Query, key, value and output matrices under their own names, output dimension first."""
    rows, bias = "(h k) d -> h d k", "(h k) -> h k"
    return {
        "W_Q": Part(attention + "q_proj.weight", rows),
        "W_K": Part(attention + "k_proj.weight", rows),
        "W_V": Part(attention + "v_proj.weight", rows),
        "W_O": Part(attention + "out_proj.weight", "d (h k) -> h k d"),
        "b_Q": Part(attention + "q_proj.bias", bias),
        "b_K": Part(attention + "k_proj.bias", bias),
        "b_V": Part(attention + "v_proj.bias", bias),
        "b_O": Part(attention + "out_proj.bias", "d -> d"),
        "norm_gain": Part(norm + "weight", "d -> d"),
        "norm_bias": Part(norm + "bias", "d -> d"),
    }
