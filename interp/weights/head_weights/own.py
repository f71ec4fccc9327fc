"""The layout of our own checkpoints, ``model.safetensors`` with ``model.json``.

Tensors carry TransformerLens' names and stacks. Layers with fewer or narrower heads are padded
with zeros on disk and trimmed here. A model whose scores use no dot product has no QK circuit;
the trainable identity scalars a and b (`template` §2.2) give the effective circuits QK+aI and
OV+bI, with the multiplier they act with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.errors import CheckpointError
from interp.weights.head_weights.layout import Layout, Part, PartName, Sizes, Tokens
from interp.weights.head_weights.rope import Rope

_NORMS: dict[str, Any] = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}


def own(description: Mapping[str, Any]) -> Layout:
    """The layout of a prooflens checkpoint from its ``model.json``.

    Raises:
        CheckpointError: if the description has no spec, one without the sizes, or another model's.
    """
    spec = description.get("spec")
    if not isinstance(spec, Mapping):
        raise CheckpointError("model.json has no spec: it is not a prooflens checkpoint")
    kind = spec.get("kind", "transformer")
    if kind != "transformer":
        raise CheckpointError(f"a model of kind {kind!r} has no heads: give a transformer")
    for key in {"d_in", "d_out", "n_ctx"} & spec.keys():
        _size(spec, key)
    layers, d_model = _size(spec, "n_layers"), _size(spec, "d_model")
    heads, widths = _by_layer(spec, "n_heads", layers), _by_layer(spec, "d_head", layers)
    most, widest = max(heads, default=1), max(widths, default=1)
    at, scale = "blocks.{layer}.", float(spec.get("identity_multiplier", 1.0))
    parts: dict[PartName, Part] = {
        "W_Q": Part(at + "attn.W_Q", "h d k -> h d k"),
        "W_K": Part(at + "attn.W_K", "h d k -> h d k"),
        "W_V": Part(at + "attn.W_V", "h d k -> h d k"),
        "W_O": Part(at + "attn.W_O", "h k d -> h k d"),
        "b_Q": Part(at + "attn.b_Q", "h k -> h k"),
        "b_K": Part(at + "attn.b_K", "h k -> h k"),
        "b_V": Part(at + "attn.b_V", "h k -> h k"),
        "b_O": Part(at + "attn.b_O", "d -> d"),
        "norm_gain": Part(at + "ln1.w", "d -> d"),
        "norm_bias": Part(at + "ln1.b", "d -> d"),
        "identity_a": Part(at + "attn.terms.identity.a", "h -> h", factor=scale),
        "identity_b": Part(at + "attn.b", "h -> h", factor=scale),
    }
    embedding = Part("embed.W_E", "v d -> v d")
    tied = bool(spec.get("tied_unembedding"))
    unembedding = embedding if tied else Part("unembed.W_U", "d v -> v d")
    return Layout(
        family="prooflens",
        sizes=Sizes(layers, most, most, d_model, widest),
        parts=parts,
        norm=_NORMS.get(str(spec.get("norm"))),
        rope=Rope(width=widest) if spec.get("positions") == "rope" else None,
        tokens=Tokens(embedding, unembedding) if spec.get("input") == "tokens" else None,
        trims=tuple({"h": h, "k": k} for h, k in zip(heads, widths, strict=True)),
        needed=("W_V", "W_O"),
    )


_MOST = {"n_layers": 4096, "n_heads": 1 << 14, "d_model": 1 << 20, "d_head": 1 << 20}
"""Sizes beyond what any model has are refused before anything is read by them."""


def _size(spec: Mapping[str, Any], key: str) -> int:
    value = spec.get(key)
    most = _MOST.get(key, 1 << 24)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise CheckpointError(
            f"spec.{key} in model.json must be a count up to {most:,}, got {value!r}"
        )
    return value


def _by_layer(spec: Mapping[str, Any], key: str, layers: int) -> list[int]:
    value = spec.get(key)
    if isinstance(value, list) and len(value) == layers:
        return [_size({key: v}, key) for v in value]
    return [_size(spec, key)] * layers
