"""The rows that a model is decompiled on: what is asked where, and rows that ask something else.

*sets*: after a position it is asked, token by token, which may follow.
*next token*: after a position it is asked which token follows.
Labels say where something is asked, and what would be right; a program is fitted to the *model's*
decisions, right or wrong.

Rows that are equal count once. The longest third is never fitted; of the others a part is held out.
*Off the task* are rows made from the fitted ones: other tokens at random, few tokens often, ties
made and broken, single tokens exchanged. They tell whether a program is right about what the model
does where nobody trained it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.program.evaluation import NONE, Vocabulary

__all__ = ["Objective", "Rows", "Split", "off_task", "split"]

_Codes = NDArray[np.int64]
Objective = Literal["sets", "next token"]
_FEWEST = 8
_OFTEN, _HALF = 0.9, 0.5


@dataclass(frozen=True)
class Rows:
    """Rows of tokens and where something is asked.

    Attributes:
        tokens: ``[row, pos]`` codes, −1 past a row's end.
        asked: ``[row, pos]``, positions at which a decision counts.
        labels: What would be right: ``[row, pos, output]`` truths for sets, ``[row, pos]`` codes
            else, −1 where unknown; None where nobody says.
        vocabulary: What codes stand for.
        objective: Whether tokens are allowed one by one or one is chosen.
        answers: Output of the model → code of what it stands for; None where outputs are the
            vocabulary.
        encode: Codes ``[row, pos]`` → the model's inputs; None where these are the codes.
        threshold: Above which the one output of a model that has one says yes.
    """

    tokens: Int[np.ndarray, "row pos"]
    asked: Bool[np.ndarray, "row pos"]
    labels: NDArray[Any] | None
    vocabulary: Vocabulary
    objective: Objective
    answers: tuple[int, ...] | None = None
    encode: Callable[[Tensor], Tensor] | None = None
    threshold: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, which: Any) -> Rows:
        """Some of the rows, as a slice, indices or a mask."""
        labels = None if self.labels is None else self.labels[which]
        return replace(self, tokens=self.tokens[which], asked=self.asked[which], labels=labels)

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        """Tokens of each row."""
        return np.asarray((self.tokens != NONE).sum(1))

    @property
    def read(self) -> Bool[np.ndarray, "row pos"]:
        """Positions that come before one where something is asked, or are one."""
        return np.asarray(np.flip(np.maximum.accumulate(np.flip(self.asked, 1), axis=1), 1))

    def content(self) -> Int[np.ndarray, " token"]:
        """Codes of the tokens that vary: all but those that stand once in nearly every row. What
        stands after the last position where something is asked is not looked at."""
        read = np.where(self.read, self.tokens, NONE)
        found = []
        for code in np.unique(read[read != NONE]):
            times = (read == code).sum(1)
            if times.max() > 1 or (times == 1).mean() < _OFTEN:
                found.append(int(code))
        return np.array(found, dtype=np.int64)

    def common(self, most: int) -> Int[np.ndarray, " token"]:
        """Codes of the tokens that vary, if they are at most so many; else of those that half of
        the rows have, the commonest of them if they are more."""
        content = self.content()
        if len(content) <= most:
            return content
        read = np.where(self.read, self.tokens, NONE)
        share = np.array([(read == code).any(1).mean() for code in content.tolist()])
        often = np.argsort(-share, kind="stable")[:most]
        return np.sort(content[often[share[often] >= _HALF]])


@dataclass(frozen=True)
class Split:
    """Rows to fit, rows to judge on: held out, longer, and off the task."""

    fit: Rows
    held: Rows
    longer: Rows
    queries: Rows
    off_task: Rows


def split(rows: Rows, *, seed: int = 0, held: float = 0.25, queries: int = 200) -> Split:
    """Rows to fit and rows to judge on.

    Args:
        rows: Any number; equal ones count once, those that ask nothing not at all.
        seed: Of what is held out and of the rows off the task.
        held: Share of the shorter two thirds that is held out.
        queries: Rows off the task, to fit and again to judge on.

    Raises:
        ArgumentError: for fewer than eight different rows that ask something.
    """
    rows = rows[rows.asked.any(1)]
    _, first = np.unique(rows.tokens, axis=0, return_index=True)
    rows = rows[np.sort(first)]
    problems = Problems("decompile")
    rule = f"must be at least {_FEWEST} different ones that ask something"
    problems.need(len(rows) >= _FEWEST, "rows", rule, len(rows), "give more rows")
    problems.raise_if_any()
    order = np.argsort(rows.lengths, kind="stable")
    short, longer = order[: -(len(order) // 3)], order[-(len(order) // 3) :]
    rng = np.random.default_rng(seed)
    short = rng.permutation(short)
    out = max(2, int(len(short) * held))
    fit = rows[short[out:]]
    content = rows.content()
    return Split(
        fit,
        rows[short[:out]],
        rows[longer],
        off_task(fit, content, queries, seed=seed + 1),
        off_task(fit, content, queries, seed=seed + 2),
    )


def off_task(rows: Rows, content: Int[np.ndarray, " token"], count: int, *, seed: int) -> Rows:
    """Rows made from others: random tokens, few tokens often, ties, single tokens exchanged.

    Args:
        rows: To be changed; where they ask, the new ones ask.
        content: Codes that may be exchanged for each other.
        count: How many.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)
    tokens, asked = [], []
    makers = (_random, _few, _tied, _broken)
    for number in range(count if len(content) > 1 else 0):
        source = int(rng.integers(len(rows)))
        row = rows.tokens[source].copy()
        free = np.flatnonzero(np.isin(row, content))
        if len(free):
            makers[number % len(makers)](row, free, content, rng)
        tokens.append(row)
        asked.append(rows.asked[source])
    if not tokens:
        return replace(rows[:0], labels=None)
    return replace(rows, tokens=np.stack(tokens), asked=np.stack(asked), labels=None)


def _random(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    row[free] = rng.choice(content, len(free))


def _few(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    few = rng.choice(content, min(2, len(content)), replace=False)
    row[free] = rng.choice(few, len(free), p=None if len(few) == 1 else (0.7, 0.3))


def _tied(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    two = rng.choice(content, 2, replace=False)
    even = np.resize(two, len(free))
    row[free] = rng.permutation(even)


def _broken(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    at = rng.choice(free, max(1, len(free) // 10), replace=False)
    row[at] = rng.choice(content, len(at))
