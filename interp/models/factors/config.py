"""What a model's ``config.json`` says, checked as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.errors import CheckpointError

__all__ = ["count", "rope_entry"]

_ABSENT = object()


def count(config: Mapping[str, Any], key: str, default: Any = _ABSENT) -> int:
    """The positive integer under ``key``; a missing or null entry is ``default`` if given.

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


def rope_entry(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Base frequency and scaling of the rotary positions, in the old and the new spelling."""
    entry = config.get("rope_parameters") or config.get("rope_scaling")
    scaling = entry if isinstance(entry, Mapping) else None
    base = (scaling or {}).get("rope_theta") or config.get("rope_theta")
    base = base or config.get("rotary_emb_base") or 10000.0
    return float(base), scaling
