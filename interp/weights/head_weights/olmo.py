"""The layouts of OLMo and OLMo 2, under Llama's names.

OLMo's norms have no gains and no biases, so nothing is folded; it may clip queries, keys and
values. OLMo 2 has no norm before attention: it normalises what attention writes (a gain that
folding puts on the right of OV), and queries and keys over all heads together before the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.layout import Layout, Part
from interp.weights.head_weights.llama import QK_NORM, llama_layout, llama_parts

_PLAIN = "its norms have no gains: folding changes nothing"
_AFTER = "no norm before attention: its output is normalised instead (post-norm)"


def olmo(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of OLMo 1."""
    parts = llama_parts(prefix)
    del parts["norm_gain"]
    clip = config.get("clip_qkv")
    clipped = (f"queries, keys and values are clipped to ±{clip}, which no circuit shows",)
    notes = (_PLAIN, *(clipped if clip else ()))
    return llama_layout(config, prefix, tied, "OLMo", parts, notes, norm="LayerNorm")


def olmo2(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of OLMo 2."""
    parts, attention = llama_parts(prefix), prefix + "layers.{layer}.self_attn."
    del parts["norm_gain"]
    parts["q_gain"] = Part(attention + "q_norm.weight", "(h k) -> h k")
    parts["k_gain"] = Part(attention + "k_norm.weight", "(g k) -> g k")
    after = prefix + "layers.{layer}.post_attention_layernorm.weight"
    parts["out_gain"] = Part(after, "d -> d")
    notes = (_AFTER, QK_NORM)
    return llama_layout(config, prefix, tied, "OLMo 2", parts, notes, norm=None)
