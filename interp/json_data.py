"""A value as JSON data: what tables, arrays and numbers without a value become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def json_data(value: Any) -> Any:
    """A value as JSON data: tables as lists of records, numbers that are not finite as null.

    JSON has no NaN: strict readers refuse a text with one.
    """
    if hasattr(value, "to_json"):  # a table of pandas
        return json.loads(value.to_json(orient="records", double_precision=15))
    if isinstance(value, Mapping):
        return {str(key): json_data(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_data(one) for one in value]
    if hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return str(value) if isinstance(value, Path) else value
