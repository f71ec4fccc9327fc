"""A text that a command line gives, read before anything heavy is imported or loaded."""

from __future__ import annotations

from pathlib import Path

from interp.reading import read_text


def text_of(given: str) -> str:
    """The text that a command line gives: what a file holds, or the words themselves.

    What has no space in it is a file's name.

    Raises:
        ArgumentError: if the file is not there, or is not UTF-8 text.
    """
    file = Path(given)
    if any(letter.isspace() for letter in given) and not file.is_file():
        return given
    return read_text(file, "text")
