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
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, create_model

from interp.errors import ArgumentError, Problems
from interp.reading import read_json, read_toml
from interp.schema import FileTable, Positive, Whole, check_shape, faults, rule_error
from interp.weights.head_weights.layout import HeadSizes, Layout, PartName, Tokens, WeightPart
from interp.weights.head_weights.rope import Rope

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

_UNFOLDED = "the mapping names nothing of a norm: folding it changes nothing"


class _MappedPart(FileTable, extra="forbid"):
    name: str
    pattern: str
    pick: Whole | None = None
    slots: Annotated[list[Whole], Field(min_length=2, max_length=2)] | None = None
    offset: float = 0.0
    factor: float = 1.0


def _even(width: int) -> int:
    if width % 2:
        raise rule_error("must be even, as coordinates are turned in pairs")
    return width


class _MappedRope(FileTable, extra="forbid"):
    width: Annotated[Positive, AfterValidator(_even)]
    theta: Annotated[float, Field(gt=0)] = 10000.0
    neighbours: bool = False
    scaling: dict[str, Any] | None = None


class _MappedSizes(FileTable, extra="forbid"):
    n_layers: Positive
    n_heads: Positive
    n_kv_heads: Positive | None = None
    d_model: Positive
    d_head: Positive
    attention: str = ""
    norm: Literal["LayerNorm", "RMSNorm"] | None = None
    rope: _MappedRope | None = None
    family: str = "mapped model"


_NEEDED = ("W_Q", "W_K", "W_V", "W_O")
_PARTS: dict[str, Any] = {
    key: (_MappedPart, ...) if key in _NEEDED else (_MappedPart | None, None) for key in _RESULT
}
_MappingFile = create_model("_MappingFile", __base__=_MappedSizes, **_PARTS)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the table in a TOML or JSON file.

    Raises:
        ArgumentError: if the file cannot be read or holds no table.
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
    given = {key: _as_parsed(value) for key, value in table.items()}
    check_shape(_MappingFile, given, problems)
    for key in _RESULT:
        if key in given and not faults(_MappedPart, given[key], key):
            _check_part(key, _MappedPart.model_validate(given[key]), problems)
    problems.raise_if_any()
    read = _MappingFile.model_validate(given)
    heads, groups = read.n_heads, read.n_kv_heads or read.n_heads
    rule = f"must divide n_heads = {heads}"
    problems.need(heads % groups == 0, "n_kv_heads", rule, groups, "correct it")
    if read.rope is not None:
        turned, rule = read.rope.width, f"must be even and at most d_head = {read.d_head}"
        problems.need(turned <= read.d_head, "rope.width", rule, turned, "correct it")
    problems.raise_if_any()
    parts = {key: part for key in _RESULT if (part := getattr(read, key)) is not None}
    made = {key: _weight_part(part) for key, part in parts.items()}
    embedding, unembedding = (made.get(key) for key in ("embedding", "unembedding"))
    return Layout(
        family=read.family,
        sizes=HeadSizes(read.n_layers, heads, groups, read.d_model, read.d_head),
        parts={name: made[name] for name in get_args(PartName) if name in made},
        attention=read.attention,
        norm=read.norm,
        rope=None if read.rope is None else Rope(**dict(read.rope)),
        tokens=None if embedding is None else Tokens(embedding, unembedding or embedding),
        notes=() if {"norm_gain", "norm_bias", "out_gain"} & {*made} else (_UNFOLDED,),
    )


def _as_parsed(value: Any) -> Any:
    """Convert a value to what a parsed file would hold: a dict for each mapping, a list for each
    tuple."""
    if isinstance(value, Mapping):
        return {key: _as_parsed(one) for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _weight_part(part: _MappedPart) -> WeightPart:
    slots = None if part.slots is None else (part.slots[0], part.slots[1])
    return WeightPart(**{**dict(part), "slots": slots})


def _check_part(key: str, part: _MappedPart, problems: Problems) -> None:
    """Check the rules that a part's own annotations cannot express, for its pattern and name."""
    wanted = ("p " if part.pick is not None else "") + _RESULT[key]
    result = part.pattern.partition("->")[2].split()
    if part.slots is not None:
        wanted = "s" + wanted[1:]
        rule = "must be from and up to, the first below the second"
        problems.need(part.slots[0] < part.slots[1], f"{key}.slots", rule, part.slots, "reorder")
    same = [axis if axis != "1" else "h" for axis in result] == wanted.split()
    rule = f"must have a pattern with the result {wanted!r}"
    problems.need(same, key, rule, part.pattern, "reorder")
    per_layer = "embedding" not in key
    good = ("{layer}" in part.name) == per_layer
    rule = "must name its tensor with {layer}" if per_layer else "must name one tensor, no {layer}"
    problems.need(good, key, rule, part.name, "correct the name")
