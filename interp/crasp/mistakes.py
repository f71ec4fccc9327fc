"""Mistakes in a program's text, each with its line, its column and carets under the place.

A :class:`ProgramError` tells all mistakes that were found, each with its line of source, so that a
file is put right in one go. What follows from a mistake already told is not told again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from interp.errors import ProoflensError

__all__ = ["Mistake", "ProgramError"]


@dataclass(frozen=True, order=True)
class Mistake:
    """One mistake in a program's text.

    Attributes:
        line: The line's number, counted from 1.
        column: Counted from 1, in characters; tabs count as one.
        message: What is wrong and what to do about it.
        source: The text of the line.
        width: How many characters the mistake spans.
    """

    line: int
    column: int
    message: str
    source: str = ""
    width: int = 1

    def told(self, name: str) -> str:
        """The message as ``name:line:column: message``, with the source line and carets below
        it."""
        gap = re.sub(r"[^\t]", " ", self.source[: self.column - 1])
        marks = "^" * max(self.width, 1)
        return (
            f"{name}:{self.line}:{self.column}: {self.message}\n    {self.source}\n    {gap}{marks}"
        )


class ProgramError(ProoflensError):
    """Raised for a text that is not a program; it names every mistake.

    Attributes:
        mistakes: All mistakes, in the order of the text.
    """

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes))
        number = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        told = "\n".join(mistake.told(name) for mistake in self.mistakes)
        super().__init__(f"{name}: {number}\n{told}")
