"""Find the line of a TOML file on which a key stands, which the standard parser does not tell."""

from __future__ import annotations

import re

__all__ = ["Lines"]

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([\w.-]+))\s*=""")


class Lines:
    """The lines of a TOML file's tables and keys.

    Args:
        text: The text of a TOML file that can be parsed.
    """

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, str], int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            header, key = _HEADER.match(line), _KEY.match(line)
            if header is not None:
                table = header[1].replace(" ", "")
                self._found.setdefault((table, ""), number)
            elif key is not None:
                name = next(part for part in key.groups() if part)
                self._found.setdefault((table, name), number)

    def of(self, table: str, key: str) -> str:
        """``line 12`` of a key (or of a grid's list for it), of its table, or ``line 1``.

        Args:
            table: The name of the table; ``""`` for keys above the first table.
            key: The key; with table ``""`` it may also be a table's name.
        """
        whole = f"{table}.{key}".strip(".")
        places = [(table, key), ("grid", whole), (whole, ""), (table, "")]
        return f"line {next((self._found[p] for p in places if p in self._found), 1)}"
