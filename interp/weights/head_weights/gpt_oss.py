"""The layout of gpt-oss: Llama's names, biases everywhere, and a sink for every head.

A sink is a learned number that joins a query's scores before the softmax and is then dropped: the
attention that reaches tokens sums to less than one, and a head can attend to nothing. No circuit
shows it. Every other layer looks back a window only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.layout import Layout, Part
from interp.weights.head_weights.llama import llama_layout, llama_parts, sliding

SINKS = "attention sinks: a head's attention to tokens sums to less than 1, the rest goes to none"


def gpt_oss(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of gpt-oss."""
    parts = llama_parts(prefix)
    parts["sinks"] = Part(prefix + "layers.{layer}.self_attn.sinks", "h -> h")
    return llama_layout(config, prefix, tied, "gpt-oss", parts, (SINKS, *sliding(config)))
