"""What a piece of JSON must look like: small checks that are put together into one for a file kind.

    part = table({"part": whole(), "rows": many(pair), "sha256": text(_DIGEST)})
    faults = part(entry, "line 3")          # [] or sentences, each with the place

A check takes a value and the words for its place, and gives a sentence a fault. Keys that a table
does not name are allowed: a newer minor version may say more. A fitting shape says nothing about
whether the numbers are true: that is what checksums are for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], list[str]]
LARGEST = 2**63 - 1


def _fault(place: str, rule: str, value: Any) -> list[str]:
    said = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return [f"{place} must be {rule}, got {said[:80]}"]


def whole(least: int = 0, most: int = LARGEST) -> Check:
    """A whole number of at most 64 bits."""

    def check(value: Any, place: str) -> list[str]:
        if type(value) is int and least <= value <= most:
            return []
        return _fault(place, f"a whole number from {least} to {most}", value)

    return check


def number() -> Check:
    """A finite number."""

    def check(value: Any, place: str) -> list[str]:
        if type(value) in (int, float) and math.isfinite(value):
            return []
        return _fault(place, "a finite number", value)

    return check


def truth(value: Any, place: str) -> list[str]:
    """Check that a JSON value is a Boolean.

    Numbers (0, 1) and texts ("true") are refused.

    Args:
        value: The parsed value.
        place: Where it stands in the file, for the error message.

    Returns:
        ``[]`` if the value is ``True`` or ``False``; otherwise one sentence with the place and
        the value.
    """
    return [] if value is True or value is False else _fault(place, "true or false", value)


def text(pattern: str = "", *, rule: str = "text", most: int = 1 << 20) -> Check:
    """Text of at most ``most`` characters that fits a regular expression as a whole."""
    fits = re.compile(pattern or r".*", re.DOTALL).fullmatch

    def check(value: Any, place: str) -> list[str]:
        if isinstance(value, str) and len(value) <= most and fits(value):
            return []
        return _fault(place, rule, value)

    return check


def one_of(*known: Any) -> Check:
    """One of these values, of the same type."""

    def check(value: Any, place: str) -> list[str]:
        if any(type(value) is type(item) and value == item for item in known):
            return []
        return _fault(place, f"one of {', '.join(map(str, known))}", value)

    return check


def maybe(inner: Check) -> Check:
    """Null, or what ``inner`` asks for."""
    return lambda value, place: [] if value is None else inner(value, place)


def many(inner: Check, *, least: int = 0, most: int = LARGEST) -> Check:
    """A list whose items all fit."""

    def check(value: Any, place: str) -> list[str]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            return _fault(place, f"a list of at least {least}", value)
        for index, item in enumerate(value):
            if inner(item, place):
                return inner(item, f"{place}[{index}]")
        return []

    return check


def each(inner: Check) -> Check:
    """A table with any keys, whose values all fit."""

    def check(value: Any, place: str) -> list[str]:
        if not isinstance(value, dict):
            return _fault(place, "a table", value)
        return [fault for key, item in value.items() for fault in inner(item, f"{place}.{key}")]

    return check


def table(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """A table with these keys."""
    known = {**needed, **(optional or {})}

    def check(value: Any, place: str) -> list[str]:
        if not isinstance(value, dict):
            return _fault(place, "a table", value)
        faults = [f"{place} has no {key!r}" for key in needed if key not in value]
        for key, inner in known.items():
            if key in value:
                faults += inner(value[key], f"{place}.{key}")
        return faults

    return check
