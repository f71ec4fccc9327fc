"""All ±1 sequences of a length, for fixed memories (`memory` §1.2, Task I)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import Affine, box, exactly
from interp.tasks.memory import FixedMemory
from probes.certify.cover import Cells, chunks
from probes.certify.domains.base import CHUNK, Domain

__all__ = ["Signs"]


class Signs(Domain):
    """Every ±1 sequence of ``length`` inputs, judged wherever the task asks for an answer.

    The error is |output − f|, f = ±1; always answering 0 has error 1.
    """

    kind = "error"
    trivial = 1.0

    def __init__(self, task: FixedMemory, length: int) -> None:
        self.task, self.length = task, length
        table = task.truth_table()
        self._table = np.array([float(table[c]) for c in product((-1, 1), repeat=self.arguments)])

    @property
    def arguments(self) -> int:
        """How many inputs f reads."""
        return len(self.task.lags) + 1

    @property
    def lags(self) -> tuple[int, ...]:
        """Of f's arguments, x_t first."""
        return (0, *self.task.lags)

    @property
    def judged(self) -> range:
        """Positions that have an answer."""
        return range(max(self.task.lags), self.length)

    @property
    def size(self) -> int:
        """2^length."""
        return int(2**self.length)

    @property
    def statement(self) -> str:
        """In words."""
        first, last = self.judged[0], self.judged[-1]
        where = f"positions {first} to {last}" if first < last else f"position {first}"
        return f"all 2^{self.length} sequences of {self.length} inputs ±1, at {where}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """See :class:`~probes.certify.domains.base.Domain`."""
        return "real", 1, 1, self.length

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        return {"kind": "signs", "task": self.task.to_dict(), "length": self.length}

    def answers(
        self, arguments: Float64[np.ndarray, "cell argument"]
    ) -> Float64[np.ndarray, " cell"]:
        """f of ±1 arguments."""
        place = 2 ** np.arange(self.arguments - 1, -1, -1)
        return self._table[((arguments > 0) * place).sum(-1)]

    def points(self) -> Iterator[Cells]:
        """Every sequence, for every judged position those of its own length."""
        for t in self.judged:
            for start, end in chunks(2 ** (t + 1), CHUNK):
                codes = np.arange(start, end)[:, None] >> np.arange(t, -1, -1)
                yield self._cells(2.0 * (codes & 1) - 1.0)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """n random sequences for each judged position."""
        for t in self.judged:
            yield self._cells(rng.choice([-1.0, 1.0], size=(n, t + 1)))

    def _cells(self, x: Float64[np.ndarray, "cell pos"]) -> Cells:
        last = x.shape[1] - 1
        f = self.answers(x[:, [last - lag for lag in self.lags]])
        return Cells(exactly(x[..., None]), exactly(f[:, None]), np.ones(len(x)))

    def boxes(self) -> Iterator[Cells]:
        """Nothing is known of any input, nor of f."""
        for t in self.judged:
            yield self.cases(t, ())

    def cases(self, t: int, lags: Sequence[int]) -> Cells:
        """A cell for each assignment of the inputs at ``lags`` before ``t``; the others are free.

        f is known where all its arguments are; otherwise it lies between its least and largest
        value on the cell.
        """
        known = sorted({lag for lag in lags if 0 <= lag <= t})
        corners = np.array(list(product((-1.0, 1.0), repeat=len(known)))).reshape(
            2 ** len(known), len(known)
        )
        centre = np.zeros((len(corners), t + 1, 1))
        centre[:, [t - lag for lag in known], 0] = corners
        free = [place for place in range(t + 1) if t - place not in known]
        reach = np.zeros((t + 1, 1))
        reach[free] = 1.0
        low, high = self._range(known, corners)
        middle, half = (low + high) / 2, (high - low) / 2
        targets = Affine(middle[:, None], np.zeros((0, len(corners), 1)), half[:, None])
        weight = np.full(len(corners), 2.0 ** len(free))
        inputs = box(centre, reach)
        names = tuple(f"input at lag {t - place}" for place in free)
        return Cells(inputs, targets, weight, symbols=len(free), names=names)

    def _range(
        self, known: Sequence[int], corners: Float64[np.ndarray, "cell lag"]
    ) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
        """Least and largest f on each cell."""
        unknown = [lag for lag in self.lags if lag not in known]
        found = []
        for values in product((-1.0, 1.0), repeat=len(unknown)):
            filled = dict(zip(unknown, values, strict=True))
            columns = [
                np.full(len(corners), filled[lag])
                if lag in filled
                else corners[:, known.index(lag)]
                for lag in self.lags
            ]
            found.append(self.answers(np.stack(columns, axis=1)))
        return np.min(found, axis=0), np.max(found, axis=0)
