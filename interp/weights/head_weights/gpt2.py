"""The layout of GPT-2: query, key and value side by side in one matrix, input dimension first.

The same tensor names carry other models (DistilGPT-2, the multilingual and code descendants);
GPTBigCode shares one key/value head and stores matrices the other way: it is not this family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.config import count
from interp.weights.head_weights.layout import Layout, Part, PartName, Sizes, Tokens


def gpt2(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of a GPT-2 whose tensors start with ``prefix``."""
    heads, width = count(config, "n_head"), count(config, "n_embd")
    at = prefix + "h.{layer}."
    side_by_side = "d (p h k) -> p h d k"
    parts: dict[PartName, Part] = {
        "W_Q": Part(at + "attn.c_attn.weight", side_by_side, 0),
        "W_K": Part(at + "attn.c_attn.weight", side_by_side, 1),
        "W_V": Part(at + "attn.c_attn.weight", side_by_side, 2),
        "W_O": Part(at + "attn.c_proj.weight", "(h k) d -> h k d"),
        "b_Q": Part(at + "attn.c_attn.bias", "(p h k) -> p h k", 0),
        "b_K": Part(at + "attn.c_attn.bias", "(p h k) -> p h k", 1),
        "b_V": Part(at + "attn.c_attn.bias", "(p h k) -> p h k", 2),
        "b_O": Part(at + "attn.c_proj.bias", "d -> d"),
        "norm_gain": Part(at + "ln_1.weight", "d -> d"),
        "norm_bias": Part(at + "ln_1.bias", "d -> d"),
    }
    return Layout(
        family="GPT-2",
        sizes=Sizes(count(config, "n_layer"), heads, heads, width, width // heads),
        parts=parts,
        attention=at + "attn.",
        norm="LayerNorm",
        tokens=Tokens.rows(prefix + "wte.weight", "lm_head.weight", tied=tied),
    )
