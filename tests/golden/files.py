"""How answers are written down, read back and compared.

A file is JSON with one entry a line, numbers rounded to nine digits; large ones are compressed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["DATA", "FLOOR", "RELATIVE", "differences", "file_of", "read", "write"]

DATA = Path(__file__).parent / "data"

RELATIVE = 3e-5
"""Numbers may differ by this share of the larger: processors of another kind add float32 numbers in
another order. Between two kinds p-values differed by 1.2e-5, intervals by 9e-6, effects by 3e-6."""

FLOOR = 1e-9
"""Numbers may always differ by this: sums of numbers near one in another order do, and no p below
1e-10 is told from 1e-10."""

_DIGITS = 9
_LARGE = 60_000
"""Characters; longer files are compressed."""


def file_of(name: str) -> Path:
    """The file of a case: compressed, or as text."""
    packed = DATA / f"{name}.json.gz"
    return packed if packed.exists() else DATA / f"{name}.json"


def write(name: str, answer: dict[str, Any]) -> Path:
    """Write a case's answer in place of the old one."""
    text = _text(_round_floats(answer))
    for old in (DATA / f"{name}.json.gz", DATA / f"{name}.json"):
        old.unlink(missing_ok=True)
    large = len(text) > _LARGE
    file = DATA / (f"{name}.json.gz" if large else f"{name}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    file.write_bytes(gzip.compress(data, 9, mtime=0) if large else data)
    return file


def read(name: str) -> dict[str, Any]:
    """A case's answer as it was recorded."""
    file = file_of(name)
    data = file.read_bytes()
    return dict(json.loads(gzip.decompress(data) if file.suffix == ".gz" else data))


def differences(then: Any, now: Any, where: str = "", floor: float = FLOOR) -> Iterator[str]:
    """Where two answers differ, one sentence each.

    Args:
        then: What was recorded.
        now: What is answered now.
        where: What both are about.
        floor: How much numbers may differ, however small they are.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        for name in [*then, *(name for name in now if name not in then)]:
            there = f"{where} / {name}" if where else name
            if name not in now:
                yield f"{there}: is gone, was {_short(then[name])}"
            elif name not in then:
                yield f"{there}: is new, {_short(now[name])}"
            else:
                yield from differences(then[name], now[name], there, floor)
    elif isinstance(then, list) and isinstance(now, list):
        if len(then) != len(now):
            yield f"{where}: has {len(now)} entries, had {len(then)}"
        for place, (old, new) in enumerate(zip(then, now, strict=False)):
            yield from differences(old, new, f"{where}[{place}]", floor)
    elif _number(then) and _number(now):
        if isinstance(then, int) and isinstance(now, int):
            equal = then == now
        else:
            equal = abs(then - now) <= max(floor, RELATIVE * max(abs(then), abs(now)))
        if not equal:
            yield f"{where}: is {now!r}, was {then!r}"
    elif then != now:
        yield f"{where}: is {_short(now)}, was {_short(then)}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 200 else text[:200] + " …"


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_floats(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_round_floats(part) for part in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _text(answer: dict[str, Any]) -> str:
    """JSON whose tables have a line a row."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def entries(value: Any, indent: str) -> str:
        if isinstance(value, dict) and any(isinstance(v, dict | list) for v in value.values()):
            deeper = indent + " "
            inner = ",\n".join(
                f"{deeper}{line(name)}: {entries(part, deeper) if len(indent) < 2 else line(part)}"
                for name, part in value.items()
            )
            return f"{{\n{inner}\n{indent}}}"
        return line(value)

    return entries(answer, "") + "\n"
