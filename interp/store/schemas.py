"""What a manifest and an index line must say; everything that reads a store reads through these.

A line's file name follows from its kind and number or name: no line can name a file outside the
store, or one of another kind.
"""

from __future__ import annotations

from typing import Any

from interp.schema import each, many, maybe, one_of, table, text, truth, whole

__all__ = [
    "MANIFEST_SCHEMA",
    "NAME",
    "entry_faults",
    "measurement_name",
    "part_name",
]

NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}"
_SHA256 = text(r"[0-9a-f]{64}", rule="a SHA-256 in hexadecimal")
_WORD = text(r"[^\x00]+", rule="text", most=4096)
_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_SHAPE = many(whole(most=2**40), most=32)


def part_name(number: int) -> str:
    """The file name of a part."""
    return f"part-{number:05d}.h5"


def measurement_name(name: str) -> str:
    """The file name of a measurement."""
    return f"measurements-{name}.h5"


_PLAN = table(
    {
        "model": table({"class": _WORD, "weights_sha256": _SHA256}, {"name": maybe(_WORD)}),
        "source": table({"kind": _WORD}),
        "seed": whole(),
        "rows": maybe(whole()),
        "hooks": many(_WORD),
        "batch": whole(1),
        "part_rows": whole(1),
        "compression": maybe(_WORD),
    }
)

_HOOK = table({"shape": _SHAPE, "dtype": one_of(*_DTYPES), "labels": many(_WORD, least=1, most=33)})


def _hook(value: Any, place: str) -> list[str]:
    if faults := _HOOK(value, place):
        return faults
    labels, axes = len(value["labels"]), len(value["shape"]) + 1
    return [] if labels == axes else [f"{place} has {labels} labels for {axes} axes"]


MANIFEST_SCHEMA = table(
    {
        "format": _WORD,
        "version": _WORD,
        "product": _WORD,
        "plan_digest": _SHA256,
        "plan": _PLAN,
        "hooks": each(_hook),
        "aliases": each(_WORD),
        "rows": maybe(whole()),
        "complete": truth,
    },
    {"environment": each(text()), "about": table({}, {"conformance": many(text())})},
)


def _run(value: Any, place: str) -> list[str]:
    good = (
        isinstance(value, list)
        and len(value) == 2
        and type(value[0]) is int
        and type(value[1]) is int
        and 0 <= value[0] < value[1] < 2**53
    )
    return [] if good else [f"{place} must be two row ids [from, below], got {str(value)[:60]}"]


_SEALED = {"n": whole(), "bytes": whole(1), "sha256": _SHA256}
_PART = table(
    {
        "part": whole(most=10**9),
        "file": text(),
        "rows": many(_run, least=1),
        "source_sha256": text(r"([0-9a-f]{64})?", rule="a SHA-256 in hexadecimal"),
        "shapes": each(_SHAPE),
        **_SEALED,
    },
    {"overflows": each(whole())},
)
_MEASUREMENT = table(
    {"name": text(NAME, rule="letters, digits, . _ + -"), "file": text(), **_SEALED},
    {"replaces": table(_SEALED)},
)
_KINDS = {"part": _PART, "measurement": _MEASUREMENT}


def entry_faults(entry: Any, place: str) -> list[str]:
    """What is wrong with a line of the index; kinds that only newer versions know pass."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return [f"{place} is not an index entry"]
    kind = entry["kind"]
    check = _KINDS.get(kind)
    if check is None:
        return []
    if faults := check(entry, place):
        return faults
    part = kind == "part"
    name = part_name(entry["part"]) if part else measurement_name(entry["name"])
    if entry["file"] != name:
        return [f"{place}.file must be {name}, got {entry['file'][:80]!r}"]
    if not part:
        return []
    n, shapes = entry["n"], entry["shapes"]
    if sum(stop - start for start, stop in entry["rows"]) != n:
        return [f"{place}.rows must hold n = {n} rows"]
    if not {"row", "inputs"} <= shapes.keys():
        return [f"{place}.shapes must have row and inputs"]
    return [
        f"{place}.shapes.{name} must begin with n = {n}, got {shape}"
        for name, shape in shapes.items()
        if not shape or shape[0] != n
    ]
