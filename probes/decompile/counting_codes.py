"""Vectors that are equal but for rounding get the same number."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

__all__ = ["Codes"]

_TOLERANCE = 1e-6


class Codes:
    """Vectors seen so far, numbered in the order in which they came.

    Args:
        width: Of the vectors.
        scale: What their size is measured by: two vectors are equal if no entry differs by more
            than a millionth of it.
    """

    def __init__(self, width: int, scale: float) -> None:
        self.vectors: Float[np.ndarray, "code width"] = np.zeros((0, width))
        self._step = _TOLERANCE * (scale or 1.0)
        self._offset = np.modf(0.317 + 0.618 * np.arange(width))[0]

    def __len__(self) -> int:
        return len(self.vectors)

    def of(self, vectors: Float[np.ndarray, "row width"]) -> Int[np.ndarray, " row"]:
        """Each vector's number; new vectors get new ones."""
        grid = np.floor(vectors / self._step + self._offset).astype(np.int64)
        _, first, inverse = np.unique(grid, axis=0, return_index=True, return_inverse=True)
        numbers = np.array([self._number(vectors[row]) for row in first], dtype=np.int64)
        return np.asarray(numbers[inverse.reshape(-1)])

    def _number(self, vector: np.ndarray) -> int:
        off = np.abs(self.vectors - vector).max(axis=1, initial=0.0)
        if len(off) and off.min() <= 2 * self._step:
            return int(off.argmin())
        self.vectors = np.concatenate([self.vectors, vector[None]])
        return len(self.vectors) - 1
