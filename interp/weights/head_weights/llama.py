"""The layouts of Llama, Mistral, Mixtral, Qwen 2 and 3, and of Gemma, whose norms store 1 + w.

Grouped-query attention: h query heads share g ≤ h key/value heads, and each query head is paired
with its group's. Qwen 2 has query, key and value biases. Qwen 3 and Gemma 3 normalise each head's
query and key before the product: the gains of those norms are multiplied into the factors, what
remains is a positive factor for each token, which changes no sign and no direction of the circuit.
Gemma 2 and 3 also normalise what attention writes: that gain is folded with the norm's when
folding is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from interp.weights.head_weights.config import count, rope_of
from interp.weights.head_weights.layout import Layout, Part, PartName, Sizes, Tokens

QK_NORM = (
    "queries and keys are normalised per token before the product: gains are in the QK circuit, "
    "the positive per-token factors are not"
)
_SOFT_CAP = "scores are soft-capped, which keeps their order: the QK circuit is the one before it"
_SCALED = "embeddings enter multiplied by √d_model, which scales token-basis circuits only"


def llama(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of Llama, Mistral, Mixtral, Qwen 2 and Qwen 3 (and their mixtures of experts)."""
    parts = llama_parts(prefix, offset=0.0)
    kind = str(config["model_type"])
    window = sliding(config) if config.get("use_sliding_window", True) else ()
    return llama_layout(config, prefix, tied, kind, parts, window)


def sliding(config: Mapping[str, Any]) -> tuple[str, ...]:
    """A note where the configuration limits how far attention looks back."""
    size = config.get("sliding_window")
    if not size:
        return ()
    kinds = config.get("layer_types") or ()
    some = sum(kind == "sliding_attention" for kind in kinds)
    where = f"{some} of {len(kinds)} layers" if kinds else "its layers"
    return (
        (f"sliding window: {where} look back {size} positions at most",)
        if some or not kinds
        else ()
    )


def gemma(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of Gemma 1, 2 and 3; of a multimodal Gemma 3, that of its language model."""
    inner = config.get("text_config")
    text = dict(inner) if isinstance(inner, Mapping) else dict(config)
    kind = str(config["model_type"])
    parts = llama_parts(prefix, offset=1.0)
    if kind != "gemma":
        name = prefix + "layers.{layer}.post_attention_layernorm.weight"
        parts["out_gain"] = Part(name, "d -> d", offset=1.0)
    capped = bool(text.get("attn_logit_softcapping"))
    notes = (_SCALED, *((_SOFT_CAP,) if capped else ()), *sliding(text))
    return llama_layout(text, prefix, tied, kind, parts, notes)


def llama_parts(prefix: str, offset: float = 0.0) -> dict[PartName, Part]:
    """The parts under Llama's names, which many families share.

    Args:
        prefix: what stands before ``layers.0`` in the names.
        offset: what the norms add to their stored gains.
    """
    at = prefix + "layers.{layer}."
    attention = at + "self_attn."
    return {
        "W_Q": Part(attention + "q_proj.weight", "(h k) d -> h d k"),
        "W_K": Part(attention + "k_proj.weight", "(g k) d -> g d k"),
        "W_V": Part(attention + "v_proj.weight", "(g k) d -> g d k"),
        "W_O": Part(attention + "o_proj.weight", "d (h k) -> h k d"),
        "b_Q": Part(attention + "q_proj.bias", "(h k) -> h k"),
        "b_K": Part(attention + "k_proj.bias", "(g k) -> g k"),
        "b_V": Part(attention + "v_proj.bias", "(g k) -> g k"),
        "b_O": Part(attention + "o_proj.bias", "d -> d"),
        "norm_gain": Part(at + "input_layernorm.weight", "d -> d", offset=offset),
        "q_gain": Part(attention + "q_norm.weight", "k -> 1 k", offset=offset),
        "k_gain": Part(attention + "k_norm.weight", "k -> 1 k", offset=offset),
    }


def llama_layout(
    config: Mapping[str, Any],
    prefix: str,
    tied: bool,
    family: str,
    parts: dict[PartName, Part],
    notes: tuple[str, ...] = (),
    *,
    norm: Literal["LayerNorm", "RMSNorm"] | None = "RMSNorm",
    rotary: float = 1.0,
) -> Layout:
    """The layout of a model with Llama's configuration and these parts.

    Args:
        config: the model's configuration.
        prefix: what stands before ``layers.0`` in the names.
        tied: whether the unembedding is the embedding.
        family: the architecture's name.
        parts: where the factors lie.
        notes: what a reader of the numbers should know.
        norm: the norm before attention.
        rotary: the share of a head that is turned, where the configuration does not say.
    """
    heads, width = count(config, "num_attention_heads"), count(config, "hidden_size")
    sizes = Sizes(
        n_layers=count(config, "num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=count(config, "num_key_value_heads", heads),
        d_model=width,
        d_head=count(config, "head_dim", width // heads),
    )
    normed = "qwen3" in family or "gemma3" in family
    return Layout(
        family=family,
        sizes=sizes,
        parts=parts,
        attention=prefix + "layers.{layer}.self_attn.",
        norm=norm,
        rope=rope_of(config, sizes.d_head, share=rotary),
        tokens=Tokens.rows(prefix + "embed_tokens.weight", "lm_head.weight", tied=tied),
        notes=(*notes, QK_NORM) if normed else notes,
    )
