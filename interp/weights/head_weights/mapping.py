"""A layout that the user writes down, for an architecture that is not known here.

A mapping is a table (a dict, or a TOML or JSON file):

    n_layers = 12
    n_heads = 12          # query heads
    n_kv_heads = 12       # optional, n_heads by default
    d_model = 768
    d_head = 64
    attention = "blocks.{layer}.attn."    # optional: every tensor under it must then be mapped
    norm = "RMSNorm"                      # optional: LayerNorm or RMSNorm, with norm_gain below

    [W_Q]
    name = "blocks.{layer}.attn.query.weight"
    pattern = "(h k) d -> h d k"

    [W_K]
    name = "blocks.{layer}.attn.key.weight"
    pattern = "(g k) d -> g d k"

and W_V ([g d k]), W_O ([h k d]) alike; optional b_Q [h k], b_K, b_V [g k], b_O [d], norm_gain,
norm_bias, out_gain [d], q_gain [h k], k_gain [g k], embedding and unembedding
[v d], tied if only the first is given. Patterns are
einops patterns over the axes h, g, d, k; where several matrices share a tensor, let p lead the
result and add ``pick = 0``; where one tensor holds more query than key heads, let s, the slots of a
head's width, lead it and add ``slots = [0, 12]``, from and up to. ``offset = 1`` reads a gain
stored as 1 + w. Rotary positions are a table ``[rope]`` with width, theta and neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from interp.errors import ArgumentError, Problems
from interp.reading import read_json, read_toml
from interp.weights.head_weights.layout import HeadSizes, Layout, PartName, Tokens, WeightPart
from interp.weights.head_weights.rope import Rope

_SIZES = ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_head")
_RESULT: dict[str, str] = {
    "W_Q": "h d k",
    "W_K": "g d k",
    "W_V": "g d k",
    "W_O": "h k d",
    "b_Q": "h k",
    "b_K": "g k",
    "b_V": "g k",
    "b_O": "d",
    "norm_gain": "d",
    "norm_bias": "d",
    "out_gain": "d",
    "q_gain": "h k",
    "k_gain": "g k",
    "embedding": "v d",
    "unembedding": "v d",
}
_NEEDED = ("W_Q", "W_K", "W_V", "W_O")
_NORMS = ("LayerNorm", "RMSNorm")


def read_mapping(path: Path) -> dict[str, Any]:
    """The table in a TOML or JSON file.

    Raises:
        ArgumentError: if it cannot be read or is no table.
    """
    found = read_json(path, "mapping") if path.suffix == ".json" else read_toml(path, "mapping")[0]
    if not isinstance(found, dict):
        raise ArgumentError(f"mapping {path} must be a table, got a {type(found).__name__}")
    return found


def layout_of_mapping(table: Mapping[str, Any]) -> Layout:
    """Make the layout that a mapping describes.

    Raises:
        ArgumentError: naming everything that is missing, unknown or malformed.
    """
    problems = Problems("mapping")
    sizes = {"n_kv_heads": table.get("n_heads"), **{k: table[k] for k in _SIZES if k in table}}
    for key in _SIZES:
        value = sizes.get(key)
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        problems.need(good, key, "must be a positive integer", value, "see the model's code")
    known = {*_SIZES, *_RESULT, "attention", "norm", "rope", "family"}
    for key in sorted(set(table) - known):
        problems.need(False, key, "is not a key of a mapping", table[key], "remove it")
    for key in _NEEDED:
        problems.need(key in table, key, "must be given", None, "name its tensor and pattern")
    for key in sorted(set(table) & set(_RESULT)):
        _check_part(key, table[key], problems)
    norm = table.get("norm")
    problems.need(norm is None or norm in _NORMS, "norm", f"must be one of {_NORMS}", norm, "pick")
    rope = table.get("rope")
    good = rope is None or (isinstance(rope, Mapping) and isinstance(rope.get("width"), int))
    problems.need(good, "rope", "must be a table with a width", rope, "see this page's example")
    problems.raise_if_any()
    parts = {key: _part(table[key]) for key in _RESULT if key in table}
    embedding, unembedding = (parts.get(key) for key in ("embedding", "unembedding"))
    tokens = None if embedding is None else Tokens(embedding, unembedding or embedding)
    return Layout(
        family=str(table.get("family", "mapped model")),
        sizes=HeadSizes(**cast("dict[str, int]", sizes)),
        parts={name: parts[name] for name in get_args(PartName) if name in parts},
        attention=str(table.get("attention", "")),
        norm=norm,
        rope=None if rope is None else Rope(**rope),
        tokens=tokens,
    )


def _part(entry: Mapping[str, Any]) -> WeightPart:
    slots = entry.get("slots")
    return WeightPart(**{**entry, "slots": None if slots is None else tuple(slots)})


def _check_part(key: str, entry: Any, problems: Problems) -> None:
    table = entry if isinstance(entry, Mapping) else {}
    pattern, pick, slots = (table.get(key) for key in ("pattern", "pick", "slots"))
    named = isinstance(table.get("name"), str) and isinstance(pattern, str)
    rule = "must be a table with a name and a pattern (and optionally pick, slots, offset, factor)"
    extra = set(table) - {"name", "pattern", "pick", "slots", "offset", "factor"}
    problems.need(named and not extra, key, rule, entry, 'e.g. {name = "…", pattern = "…"}')
    if not named:
        return
    wanted = ("p " if pick is not None else "") + _RESULT[key]
    result = str(pattern).partition("->")[2].split()
    if slots is not None:
        good = (
            isinstance(slots, list | tuple)
            and len(slots) == 2
            and all(type(n) is int for n in slots)
        )
        problems.need(good, f"{key}.slots", "must be two whole numbers", slots, "e.g. [0, 12]")
        wanted = "s" + wanted[1:]
    same = [axis if axis != "1" else "h" for axis in result] == wanted.split()
    problems.need(same, key, f"must have a pattern with the result {wanted!r}", pattern, "reorder")
    per_layer = "embedding" not in key
    good = ("{layer}" in str(table["name"])) == per_layer
    rule = "must name its tensor with {layer}" if per_layer else "must name one tensor, no {layer}"
    problems.need(good, key, rule, table["name"], "correct the name")
