"""Texts that come with Python, to fit programs of heads on: its help, and docstrings."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["docstrings", "further_rows"]

_PIECES, _STRINGS = 8, 14
"""Most rows of one topic, and of one module's docstrings."""
_LONG = 150
"""Docstrings of fewer characters are left out."""
_SHARED = 12
"""No row has so many tokens in a row that a judged one has too."""


def docstrings() -> Iterator[list[str]]:
    """Yield the long docstrings of each module of the standard library that is a file, in the order
    of its source. No module is imported."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        nodes = ast.walk(ast.parse(file.read_bytes()))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        yield [text for text in found if len(text) >= _LONG]


def further_rows(
    tokenizer: Any, judged: Int[Tensor, "row pos"], *, bos: int | None
) -> Int[Tensor, "row pos"]:
    """Return further rows to fit on: pieces of every second topic of Python's help from the first
    on, and of docstrings, none of which shares twelve tokens in a row with a judged row.

    Args:
        tokenizer: The model's tokenizer.
        judged: The rows that programs are judged on.
        bos: The token that begins every row, if the model wants one.
    """
    length, start = judged.shape[1], [] if bos is None else [bos]
    step, known = length - len(start), set().union(*map(_runs, judged.tolist()))
    found = dict[tuple[int, ...], None]()
    sources = [([topics[name]], _PIECES) for name in sorted(topics)[::2]]
    sources += [(texts, _STRINGS) for texts in docstrings()]
    for texts, most in sources:
        rows = list[tuple[int, ...]]()
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False)
            ends = range(step, len(ids) + 1, step)
            rows += [(*start, *ids[end - step : end]) for end in ends]
        found |= dict.fromkeys([row for row in rows if not _runs(row) & known][:most])
    return torch.tensor([*found])


def _runs(row: Any) -> set[tuple[int, ...]]:
    return {tuple(row[i : i + _SHARED]) for i in range(1, len(row) - _SHARED + 1)}
