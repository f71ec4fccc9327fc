"""The rows of each training step: plain text, and text that repeats a passage.

    plain       a window of the text
    repeated    a window in which one passage stands a second time, somewhere after its first
    shuffled    a passage of tokens drawn by their frequency, again and again; only what can be
                known is scored, from the second time on

Every row begins with the token that begins a text. Plain text repeats itself too seldom for heads
that look for the earlier occurrence to form in an hour; how many rows repeat is an option of the
recipe and is said wherever the model is described. A step's rows follow from (seed, step) alone, so
a training that is resumed sees what an uninterrupted one sees.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from analyses.language.tokens import BEGIN

__all__ = ["IGNORED", "rows_of"]

IGNORED = -100
"""Target at positions that are not scored; the value that PyTorch's cross-entropy ignores."""

_SHORTEST = 8  # tokens of a repeated passage


def rows_of(
    stream: Tensor, rows: int, length: int, *, repeated: float, shuffled: float, seed: list[int]
) -> tuple[Tensor, Tensor]:
    """Inputs and targets ``[row, length]`` drawn from a text ``[token]``.

    Args:
        stream: The text's ids.
        rows: Number of rows.
        length: Tokens a row, the one that begins it included.
        repeated: Share of rows whose text repeats a passage.
        shuffled: Share of rows that repeat a passage of tokens drawn by their frequency.
        seed: What decides the draw.
    """
    draw = np.random.default_rng(seed)
    text, kinds = stream.numpy(), draw.random(rows)
    inputs = np.full((rows, length + 1), BEGIN, dtype=np.int64)
    scored = np.ones((rows, length + 1), dtype=bool)
    for row, kind in enumerate(kinds):
        if kind < shuffled:
            period = int(draw.integers(_SHORTEST, length // 2 + 1))
            passage = text[draw.integers(0, len(text), period)]
            inputs[row, 1:] = np.resize(passage, length)
            scored[row, : period + 2] = False  # the second time's first token cannot be known
            continue
        start = int(draw.integers(0, len(text) - length))
        inputs[row, 1:] = text[start : start + length]
        if kind < shuffled + repeated:
            _repeat(inputs[row, 1:], draw)
    targets = np.where(scored[:, 1:], inputs[:, 1:], IGNORED)
    return torch.from_numpy(inputs[:, :-1].copy()), torch.from_numpy(targets)


def _repeat(row: np.ndarray, draw: np.random.Generator) -> None:
    """Write one passage of ``row`` a second time, at a place after the first, in place."""
    size = int(draw.integers(_SHORTEST, len(row) // 2 + 1))
    first = int(draw.integers(0, len(row) - 2 * size + 1))
    second = int(draw.integers(first + size, len(row) - size + 1))
    row[second : second + size] = row[first : first + size]
