"""The layouts of Falcon and BLOOM: query, key and value in one matrix, in one of three orders.

    head by head        q k v of each head                          BLOOM, old Falcon
    one key head        all query heads, then one key, one value    Falcon 7B (multi-query)
    group by group      the query heads of a group, its key, value  Falcon 40B, 180B

BLOOM and some Falcons have no positions but ALiBi: a score falls with the lag at a slope of the
head's own, which no circuit shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.weights.head_weights.config import count, rope_of
from interp.weights.head_weights.layout import Layout, Part, PartName, Sizes, Tokens
from interp.weights.head_weights.phi import PARALLEL

_ALIBI = "positions by ALiBi: scores fall with the lag at a slope a head, which no circuit shows"
_NORMED = "embeddings are normalised before the first layer, which token-basis circuits leave out"


def bloom(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of BLOOM."""
    heads = config.get("n_head") or count(config, "num_attention_heads")
    width = config.get("hidden_size") or count(config, "n_embed")
    layers = config.get("n_layer") or count(config, "num_hidden_layers")
    sizes = Sizes(int(layers), int(heads), int(heads), int(width), int(width) // int(heads))
    return _layout("BLOOM", sizes, _by_head(prefix), prefix, tied, notes=(_ALIBI, _NORMED))


def falcon(config: Mapping[str, Any], prefix: str, tied: bool) -> Layout:
    """The layout of Falcon, old and new."""
    heads, width = count(config, "num_attention_heads"), count(config, "hidden_size")
    grouped, parts = bool(config.get("new_decoder_architecture")), _by_head(prefix)
    groups = heads
    if grouped:
        groups = count(config, "num_kv_heads", heads)
        parts |= _by_group(prefix, heads // groups)
        if config.get("num_ln_in_parallel_attn") in (None, 2):
            norm = prefix + "h.{layer}.ln_attn."
            parts["norm_gain"] = Part(norm + "weight", "d -> d")
            parts["norm_bias"] = Part(norm + "bias", "d -> d")
    elif config.get("multi_query", True):
        groups = 1
        parts |= _one_key(prefix, heads)
    layers, alibi = count(config, "num_hidden_layers"), bool(config.get("alibi"))
    sizes = Sizes(layers, heads, groups, width, width // heads)
    side = grouped or bool(config.get("parallel_attn", True))
    notes = ((_ALIBI,) if alibi else ()) + ((PARALLEL,) if side else ())
    rope = None if alibi else rope_of(config, sizes.d_head)
    return _layout("Falcon", sizes, parts, prefix, tied, rope=rope, notes=notes)


def _layout(
    family: str, sizes: Sizes, parts: dict[PartName, Part], prefix: str, tied: bool, **rest: Any
) -> Layout:
    return Layout(
        family=family,
        sizes=sizes,
        parts=parts,
        attention=prefix + "h.{layer}.self_attention.",
        norm="LayerNorm",
        tokens=Tokens.rows(prefix + "word_embeddings.weight", "lm_head.weight", tied=tied),
        **rest,
    )


def _fused(prefix: str) -> tuple[str, str]:
    """The names of the matrix and the bias of query, key and value."""
    at = prefix + "h.{layer}.self_attention.query_key_value."
    return at + "weight", at + "bias"


def _by_head(prefix: str) -> dict[PartName, Part]:
    (matrix, bias), at = _fused(prefix), prefix + "h.{layer}."
    dense = at + "self_attention.dense."
    parts: dict[PartName, Part] = {
        "W_O": Part(dense + "weight", "d (h k) -> h k d"),
        "b_O": Part(dense + "bias", "d -> d"),
        "norm_gain": Part(at + "input_layernorm.weight", "d -> d"),
        "norm_bias": Part(at + "input_layernorm.bias", "d -> d"),
    }
    sides: tuple[tuple[PartName, PartName], ...] = (("W_Q", "b_Q"), ("W_K", "b_K"), ("W_V", "b_V"))
    for place, (weight, shift) in enumerate(sides):
        parts[weight] = Part(matrix, "(h p k) d -> p h d k", place)
        parts[shift] = Part(bias, "(h p k) -> p h k", place)
    return parts


def _one_key(prefix: str, heads: int) -> dict[PartName, Part]:
    matrix, bias = _fused(prefix)
    rows, flat = "(s k) d -> s d k", "(s k) -> s k"
    one, two, three = (0, heads), (heads, heads + 1), (heads + 1, heads + 2)
    return {
        "W_Q": Part(matrix, rows, slots=one),
        "W_K": Part(matrix, rows, slots=two),
        "W_V": Part(matrix, rows, slots=three),
        "b_Q": Part(bias, flat, slots=one),
        "b_K": Part(bias, flat, slots=two),
        "b_V": Part(bias, flat, slots=three),
    }


def _by_group(prefix: str, queries: int) -> dict[PartName, Part]:
    matrix, bias = _fused(prefix)
    rows, flat, first = "(g s k) d -> s g d k", "(g s k) -> s g k", (0, queries)
    return {
        "W_Q": Part(matrix, rows, slots=first, then="s g d k -> (g s) d k"),
        "W_K": Part(matrix, rows, queries),
        "W_V": Part(matrix, rows, queries + 1),
        "b_Q": Part(bias, flat, slots=first, then="s g k -> (g s) k"),
        "b_K": Part(bias, flat, queries),
        "b_V": Part(bias, flat, queries + 1),
    }
