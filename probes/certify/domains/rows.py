"""Every row of Max-of-K."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from interp.tasks.maximum import Maximum
from probes.certify.cover import UNKNOWN, Cells, chunks
from probes.certify.domains.base import CHUNK, Domain

__all__ = ["Rows"]


class Rows(Domain):
    """All vocabulary^K rows; the best constant answer is the largest token."""

    kind = "accuracy"

    def __init__(self, task: Maximum) -> None:
        self.task = task
        v, k = task.vocabulary, task.length
        self.trivial = (v**k - (v - 1) ** k) / v**k

    @property
    def size(self) -> int:
        """v^K."""
        return int(self.task.vocabulary**self.task.length)

    @property
    def statement(self) -> str:
        """In words."""
        v, k = self.task.vocabulary, self.task.length
        return f"all {v}^{k} rows of {k} tokens"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """See :class:`~probes.certify.domains.base.Domain`."""
        return "tokens", self.task.vocabulary, self.task.vocabulary, self.task.length

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        return {"kind": "rows", "task": self.task.to_dict()}

    def points(self) -> Iterator[Cells]:
        """Every row."""
        v, k = self.task.vocabulary, self.task.length
        for start, end in chunks(v**k, CHUNK):
            yield self._cells(np.arange(start, end)[:, None] // v ** np.arange(k - 1, -1, -1) % v)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Random rows."""
        yield self._cells(rng.integers(self.task.vocabulary, size=(n, self.task.length)))

    def _cells(self, ids: Any) -> Cells:
        return Cells(ids, ids.max(1), np.ones(len(ids)))

    def boxes(self) -> Iterator[Cells]:
        """For each query token and maximum, the other tokens unknown."""
        v, k = self.task.vocabulary, self.task.length
        pairs = np.array([(q, m) for q, m in product(range(v), repeat=2) if m >= q])
        ids = np.full((len(pairs), k), UNKNOWN)
        ids[:, -1] = pairs[:, 0]
        q, m = pairs.T
        weight = (m + 1.0) ** (k - 1) - np.where(m > q, m, 0.0) ** (k - 1)
        for start, end in chunks(len(pairs), 64):
            piece = slice(start, end)
            yield Cells(ids[piece], m[piece], weight[piece])
