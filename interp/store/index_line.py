"""What one line of an index says, checked.

Most parts of a store have the same hooks and the same shapes: their lines differ in six fields. A
line that ends as an earlier one did, and whose own fields fit a pattern that asks for no less than
the schema, needs no parser; every other line is parsed and held against the schema. Both ways
give the same entry or the same refusal; an index of a hundred thousand parts opens in a second.
"""

from __future__ import annotations

import re
from typing import Any

from interp.errors import StoreError
from interp.reading import parse_json
from interp.store.schemas import entry_faults, part_name

__all__ = ["LineReader"]

_COUNT = rb"(?:0|[1-9]\d{0,14})"  # below 2⁵³
_RUN = rb"\[(%b), (%b)\]" % (_COUNT, _COUNT)
_PART = re.compile(
    rb'\{"kind": "part", "part": (0|[1-9]\d{0,8}), "file": "(part-\d{5,9}\.h5)", "rows": \[%b\], '
    rb'"n": (%b), "bytes": ([1-9]\d{0,14}), "sha256": "([0-9a-f]{64})", '
    rb'"source_sha256": "((?:[0-9a-f]{64})?)", ("shapes": .*\})\n' % (_RUN, _COUNT),
    re.DOTALL,
)
"""A part of consecutive rows, as it is written; the end holds shapes and overflows."""
_ENDS = 256


class LineReader:
    """Reads the lines of one index, one after another."""

    def __init__(self) -> None:
        self._ends: dict[bytes, tuple[int, dict[str, Any]]] = {}

    def read(self, line: bytes, place: str) -> tuple[dict[str, Any], list[str]]:
        """The entry, and what is wrong with it; the entries of equal shapes share them.

        Args:
            line: with its newline.
            place: words for it, for what is wrong: ``line 3``.
        """
        found = _PART.fullmatch(line)
        if found is not None and (entry := self._like_earlier(found)):
            return entry, []
        try:
            entry = parse_json(line, place, StoreError)
        except StoreError as error:
            return {}, [str(error)]
        faults = entry_faults(entry, place)
        if found is not None and not faults and len(self._ends) < _ENDS:
            self._remember(found[9], entry["n"])
        return entry if isinstance(entry, dict) else {}, faults

    def _like_earlier(self, found: re.Match[bytes]) -> dict[str, Any] | None:
        number, file, start, stop, n, size, sha256, source, end = found.groups()
        rows, (of, shared) = int(n), self._ends.get(end, (-1, {}))
        run = [int(start), int(stop)]
        name = part_name(int(number))
        if of != rows or run[1] - run[0] != rows or file != name.encode():
            return None
        return {
            "kind": "part",
            "part": int(number),
            "file": name,
            "rows": [run],
            "n": rows,
            "bytes": int(size),
            "sha256": sha256.decode(),
            "source_sha256": source.decode(),
            **shared,
        }

    def _remember(self, end: bytes, rows: int) -> None:
        """Keep the end of a line that fits the schema, unless it says again what precedes it."""
        shared = parse_json(b"{" + end, "end", StoreError)
        if shared.keys() == {"shapes", "overflows"}:
            self._ends[end] = rows, shared
