"""Every string of a language L_k up to a length, for prefix prediction (`depth` §3.3).

L_k = k alternating blocks, a⁺b⁺a⁺ …. A prefix with j blocks belongs to L_k exactly when j = k, and
a causal model's answer depends on the prefix alone; so an input of the domain is a (string, scored
position) pair, and a prefix stands for as many of them as there are strings that begin with it:

    of length n: C(n − i, k − j) for a prefix of length i with j < k blocks, 1 for j = k
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.tasks.depth import PrefixPrediction
from interp.tasks.depth.batches import to_inputs
from interp.tasks.depth.languages import language
from probes.certify.cover import UNKNOWN, Cells
from probes.certify.domains.base import CHUNK, Domain

__all__ = ["Strings"]


class Strings(Domain):
    """Every scored position of every string of L_k whose length lies in the task's bins."""

    kind = "accuracy"

    def __init__(self, task: PrefixPrediction, length: int) -> None:
        self.task, self.length = task, length
        self.blocks = int(task.language.removeprefix("L_"))
        spoken = language(task.language)
        self._ids = to_inputs(task.program, np.array([[0, 1]]), spoken.letters, 2)[0, 1:].numpy()
        self.lengths = sorted(
            {n for low, high in task.bins for n in range(low, high + 1) if n <= length}
        )
        total = self._count(lambda i, j: True)
        yes = self._count(lambda i, j: j == self.blocks)
        self.trivial = max(yes, total - yes) / total

    @property
    def size(self) -> int:
        """How many (string, position) pairs."""
        return self._count(lambda i, j: True)

    @property
    def cells(self) -> int:
        """How many prefixes."""
        return sum(comb(i - 1, j - 1) for i, j in self.prefixes())

    @property
    def statement(self) -> str:
        """In words."""
        first, last = self.lengths[0], self.lengths[-1]
        return f"every position of every string of {self.task.language} of length {first} to {last}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """See :class:`~probes.certify.domains.base.Domain`."""
        return "tokens", int(self._ids.max()) + 1, 2, self.lengths[-1] + 1

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        return {"kind": "strings", "task": self.task.to_dict(), "length": self.length}

    def weight(self, i: int, j: int) -> int:
        """Strings of the domain that begin with one given prefix of length i and j blocks."""
        if j == self.blocks:
            return sum(n >= i for n in self.lengths)
        return sum(comb(n - i, self.blocks - j) for n in self.lengths if n >= i)

    def prefixes(self) -> Iterator[tuple[int, int]]:
        """(length, blocks) of the prefixes that some string of the domain begins with."""
        for i in range(1, self.lengths[-1] + 1):
            for j in range(1, min(i, self.blocks) + 1):
                if self.weight(i, j):
                    yield i, j

    def _count(self, which: Any) -> int:
        return sum(
            comb(i - 1, j - 1) * self.weight(i, j) for i, j in self.prefixes() if which(i, j)
        )

    def points(self) -> Iterator[Cells]:
        """Every prefix, with the number of strings that begin with it."""
        for i, j in self.prefixes():
            rows: list[tuple[int, ...]] = []
            for cuts in combinations(range(1, i), j - 1):
                rows.append(cuts)
                if len(rows) == CHUNK:
                    yield self._cells(i, j, rows)
                    rows = []
            if rows:
                yield self._cells(i, j, rows)

    def _cells(self, i: int, j: int, cuts: list[tuple[int, ...]]) -> Cells:
        begins = np.zeros((len(cuts), i), dtype=np.int64)
        if j > 1:
            begins[np.arange(len(cuts))[:, None], np.array(cuts)] = 1
        letters = begins.cumsum(1) % 2
        weight = np.full(len(cuts), float(self.weight(i, j)))
        return Cells(self.tokens(letters), self.answers(j, len(cuts)), weight)

    def tokens(self, letters: Int[np.ndarray, "cell pos"]) -> Int[np.ndarray, "cell one_more"]:
        """BOS, then the ids of letters 0 (a) and 1 (b)."""
        return np.pad(self._ids[letters], ((0, 0), (1, 0)))

    def answers(self, j: int, n: int) -> Int[np.ndarray, " cell"]:
        """Whether a prefix of j blocks is in the language."""
        return np.full(n, int(j == self.blocks))

    def boxes(self) -> Iterator[Cells]:
        """Of each length, the prefixes that are in the language and those that are not."""
        for i, j in self.prefixes():
            ids = np.full((1, i + 1), UNKNOWN)
            ids[:, 0] = 0
            weight = np.array([float(comb(i - 1, j - 1) * self.weight(i, j))])
            yield Cells(ids, self.answers(j, 1), weight, vocabulary=self._ids)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """n random prefixes of each length and number of blocks."""
        for i, j in self.prefixes():
            cuts = [tuple(np.sort(rng.choice(i - 1, j - 1, replace=False)) + 1) for _ in range(n)]
            drawn = self._cells(i, j, cuts)
            yield replace(drawn, weight=drawn.weight * comb(i - 1, j - 1) / n)

    def multisets(self) -> Iterator[Cells]:
        """Of each length, a cell for each last letter, number of a's and b's, and answer.

        One string stands for all with the same counts: for a model that sees no order.
        """
        for i in range(1, self.lengths[-1] + 1):
            rows: dict[tuple[int, int, int], float] = {}
            for j in range(1, min(i, self.blocks) + 1):
                strings = self.weight(i, j)
                of_a, of_b = (j + 1) // 2, j // 2
                for a in range(of_a, i - of_b + 1) if strings else ():
                    ways = comb(a - 1, of_a - 1) * (comb(i - a - 1, of_b - 1) if of_b else a == i)
                    key = (a, (j - 1) % 2, int(j == self.blocks))
                    if ways:
                        rows[key] = rows.get(key, 0.0) + float(ways * strings)
            if rows:
                yield self._counted(i, rows)

    def _counted(self, i: int, rows: dict[tuple[int, int, int], float]) -> Cells:
        letters = np.zeros((len(rows), i), dtype=np.int64)
        for row, (a, last, _) in enumerate(rows):
            letters[row, : i - a] = 1  # b's first, then a's, and the last letter in its place
            letters[row, -1] = last
            if last == 1:
                letters[row, :-1] = [1] * (i - a - 1) + [0] * a
        answers = np.array([answer for _, _, answer in rows])
        return Cells(self.tokens(letters), answers, np.array(list(rows.values())))
