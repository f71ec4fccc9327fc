"""Rows of a JSON file: one object a line, or one list of objects.

Read here and not by a library: that of Hugging Face ends the process on a file of nulls. Lines are
read one by one, so a file of lines may have any size; a list is read whole. That a row is an object
says nothing about its columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.errors import ArgumentError
from interp.reading import MOST_BYTES, open_regular, parse_json, read_json


@dataclass(frozen=True)
class JsonRows:
    """The rows of a file, in its order.

    Attributes:
        path: the file.

    Raises:
        ArgumentError: while iterating: if it cannot be read, or a row is no object; names the line.
    """

    path: Path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with os.fdopen(open_regular(self.path), "rb") as stream:
                if self.path.suffix == ".json" and stream.read(64).lstrip()[:1] == b"[":
                    rows = enumerate(read_json(self.path, "dataset"), 1)
                    yield from (self._row(row, f"row {number}") for number, row in rows)
                    return
                stream.seek(0)
                number = 0
                while line := stream.readline(MOST_BYTES):
                    number += 1
                    if line.strip():
                        place = f"line {number}"
                        yield self._row(parse_json(line, f"dataset {self.path} {place}"), place)
        except OSError as error:
            raise ArgumentError(f"dataset {self.path} cannot be read: {error.strerror}") from error

    def _row(self, row: Any, place: str) -> dict[str, Any]:
        if not isinstance(row, dict):
            raise ArgumentError(
                f"dataset {self.path} {place} must be an object such as "
                f'{{"input_ids": [1, 2]}}, got {str(row)[:40]}'
            )
        return row
