"""Read a model's ``config.json``, checking each entry as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.errors import CheckpointError
from interp.weights.head_weights.rope import Rope

_MOST = {"layers": 4096, "heads": 1 << 14, "": 1 << 24}
_SIZES = {
    "layers": ("n_layer", "n_layers", "num_layers", "num_hidden_layers"),
    "heads": ("n_head", "n_heads", "num_heads", "num_attention_heads", "num_key_value_heads"),
    "": (
        "n_embd", "n_inner", "n_positions", "n_ctx", "d_model", "d_ff", "hidden_size",
        "intermediate_size", "ffn_dim", "max_position_embeddings", "vocab_size", "head_dim",
        "word_embed_proj_dim", "window_size",
    ),
}  # fmt: skip

_ABSENT = object()


def check_sizes(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a configuration with impossible sizes, before anything is built from it.

    Raises:
        CheckpointError: naming the first impossible size.
    """
    for kind, keys in _SIZES.items():
        for key in keys:
            value = config.get(key)
            if value is None:
                continue
            each = value if isinstance(value, list | tuple) else (value,)  # one a layer
            if not all(type(one) is int and 0 <= one <= _MOST[kind] for one in each):
                raise CheckpointError(
                    f"{name}: {key} in its configuration must be a whole number up to "
                    f"{_MOST[kind]:,}, got {str(value)[:40]}"
                )


def count(config: Mapping[str, Any], key: str, default: Any = _ABSENT) -> int:
    """Return the positive integer under ``key``; if the entry is missing or null, return
    ``default``.

    Raises:
        CheckpointError: if it is missing without a default, or not a positive integer.
    """
    value = config.get(key)
    if value is None and default is not _ABSENT:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{key} in the model's configuration must be a positive integer, got {value!r}: "
            "is this the config.json that belongs to the weights?"
        )
    return value


def rope_of(config: Mapping[str, Any], d_head: int, share: float = 1.0) -> Rope:
    """Return the rotary positions of a configuration, in its older or newer spelling.

    Args:
        config: the model's configuration.
        d_head: the width of a head.
        share: the share of the head's coordinates that is rotated, if the configuration does not
            say.
    """
    entry = config.get("rope_parameters") or config.get("rope_scaling")
    scaling: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {}
    by_layer = any(isinstance(v, Mapping) for v in scaling.values())
    if by_layer or config.get("rope_local_base_freq"):
        scaling = {"rope_type": "by layer"}
    base = scaling.get("rope_theta") or config.get("rope_theta")
    base = base or config.get("rotary_emb_base") or 10000.0
    share = float(scaling.get("partial_rotary_factor") or share)
    return Rope(width=int(d_head * share), theta=float(base), scaling=scaling or None)
