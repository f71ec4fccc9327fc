"""The token ids that a compiled program takes for a string: BOS, then one id per token.

Id 0 is BOS, 1 … are the letters of the program's alphabet, sorted, and the last is any other token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from interp.crasp.analysis import alphabet
from interp.crasp.syntax import Program

__all__ = ["token_ids", "vocabulary_of"]


def vocabulary_of(program: Program) -> tuple[str | None, ...]:
    """The token of each id; None for BOS (id 0) and for every other token (the last id)."""
    return (None, *alphabet(program), None)


def token_ids(program: Program, strings: Sequence[Sequence[str]]) -> Int[Tensor, "batch pos"]:
    """The ids of strings with BOS in front, so that token i of a string is at position i + 1.

    Shorter strings are filled with the last id; the model looks back only, so what follows a
    string does not change the answers inside it.
    """
    words = vocabulary_of(program)
    index = {word: number for number, word in enumerate(words) if word is not None}
    longest = max((len(string) for string in strings), default=0)
    ids = torch.full((len(strings), longest + 1), len(words) - 1)
    ids[:, 0] = 0
    for row, string in enumerate(strings):
        known = [index.get(token, len(words) - 1) for token in string]
        ids[row, 1 : len(string) + 1] = torch.tensor(known, dtype=ids.dtype)
    return ids
