"""What a program says of rows of tokens: every line's value at every position, and the decisions.

    count(φ) at i          = Σ_{j ≤ i} φ(i, j)
    last(v where φ) at i   = v(i, max {j ≤ i : φ(i, j)}), none where the set is empty
    commonest(v where φ)   = the value that most of the positions with φ have, of equals the least

Tokens are integers into the vocabulary. They are ordered: tokens that are no numbers first, as the
vocabulary lists them, then the others by the number that they write. ``token + 1`` is the token
that writes the next number; none where there is none. Comparisons with none are false, but for ``==
none`` and ``!= none``.

This is the slow, plain meaning of programs: memory grows with length², some rows at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from interp.crasp.evaluation import COMPARE
from interp.errors import Problems
from interp.rasp import syntax
from interp.rasp.syntax import Allow, Expression, Next, Program

__all__ = ["NONE", "Decisions", "Values", "Vocabulary", "evaluate", "keys", "run"]

NONE = -1
"""The code of ``none``."""
_AT_ONCE = 2**23
_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "%": np.mod}

Values = NDArray[Any]


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that integers stand for.

    Attributes:
        texts: Code → text.
    """

    texts: tuple[str, ...]

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """Text → code."""
        return {text: code for code, text in enumerate(self.texts)}

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Code → the number that the token writes, for those that write one."""
        return {c: int(t) for c, t in enumerate(self.texts) if t.lstrip("-").isdigit()}

    @cached_property
    def order(self) -> Int[np.ndarray, " token"]:
        """Code → its rank: words as they are listed, then numbers by size."""
        keys = [(c in self.numbers, self.numbers.get(c, c), c) for c in range(len(self.texts))]
        rank = np.empty(len(self.texts), dtype=np.int64)
        rank[[c for *_, c in sorted(keys)]] = np.arange(len(self.texts))
        return rank

    def shifted(self, tokens: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens that write numbers larger by ``by``; none where there is none."""
        tokens, by = np.broadcast_arrays(tokens, by)
        if not self.numbers:
            return np.full(tokens.shape, NONE, dtype=np.int64)
        codes = np.array(sorted(self.numbers, key=lambda c: (self.numbers[c], -c)))
        written = np.array([self.numbers[c] for c in codes.tolist()])
        number = np.zeros(len(self.texts) + 1, dtype=np.int64)
        number[codes] = written
        wanted = number[tokens] + by
        at = np.minimum(np.searchsorted(written, wanted, side="right") - 1, len(codes) - 1)
        there = (written[at] == wanted) & np.isin(tokens, codes)
        return np.where(there, codes[at], NONE).astype(np.int64)


@dataclass(frozen=True)
class Decisions:
    """What a program decides at every position.

    Attributes:
        allowed: ``[row, pos, token]``, which tokens may follow; None for programs that choose one.
        chosen: ``[row, pos]``, the code of the one that follows, −1 for none; None for sets.
    """

    allowed: Bool[np.ndarray, "row pos token"] | None
    chosen: Int[np.ndarray, "row pos"] | None


def run(program: Program, rows: Int[np.ndarray, "row pos"], vocabulary: Vocabulary) -> Decisions:
    """The decisions of a program on rows of token codes; rows that end early are padded with −1.

    Raises:
        ArgumentError: for a token of the program that the vocabulary does not have.
    """
    _check(program, vocabulary)
    size = max(1, _AT_ONCE // max(rows.shape[1] ** 2, 1))
    found = [
        _decided(program, rows[start : start + size], vocabulary)
        for start in range(0, len(rows), size)
    ]
    join = [np.concatenate(parts) for parts in zip(*found, strict=True)] if found else []
    if program.objective == "sets":
        empty = np.zeros((0, rows.shape[1], len(vocabulary.texts)), dtype=bool)
        return Decisions(join[0] if join else empty, None)
    return Decisions(None, join[0] if join else np.zeros(rows.shape, dtype=np.int64))


def evaluate(
    lines: Sequence[syntax.Assignment],
    rows: Int[np.ndarray, "row pos"],
    vocabulary: Vocabulary,
) -> dict[str, Values]:
    """Name → values ``[row, pos]``: codes of tokens, integers, truths; averages are floats."""
    size = max(1, _AT_ONCE // max(rows.shape[1] ** 2, 1))
    runs = [_Run(rows[s : s + size], vocabulary) for s in range(0, max(len(rows), 1), size)]
    found = [one.lines(lines) for one in runs]
    return {line.name: np.concatenate([f[line.name] for f in found]) for line in lines}


def keys(
    lines: Sequence[syntax.Assignment],
    where: Expression,
    rows: Int[np.ndarray, "row pos"],
    vocabulary: Vocabulary,
) -> Bool[np.ndarray, "row query key"]:
    """Which earlier positions satisfy a condition, seen from every position."""
    one = _Run(rows, vocabulary)
    one.lines(lines)
    return one.chosen(where)


def _check(program: Program, vocabulary: Vocabulary) -> None:
    problems = Problems("program")
    values = [line.expression for line in program.lines]
    named: set[str] = set()
    for output in program.outputs:
        values.append(output.condition if isinstance(output, Allow) else output.value)
        named |= set() if isinstance(output, Next) else {output.token}
    for part in (c for value in values for c in syntax.children(value, deep=True)):
        named |= {part.text} if isinstance(part, syntax.Literal_) else set()
        named |= set(part.tokens) if isinstance(part, syntax.In) else set()
    unknown = ", ".join(sorted(named - set(vocabulary.texts)))
    rule = "must all be in the vocabulary"
    problems.need(not unknown, "tokens", rule, unknown, "give the rows that the program is for")
    problems.raise_if_any()


def _decided(
    program: Program, rows: NDArray[np.int64], vocabulary: Vocabulary
) -> tuple[NDArray[Any]]:
    one = _Run(rows, vocabulary)
    one.lines(program.lines)
    if program.objective == "sets":
        allowed = np.zeros((*rows.shape, len(vocabulary.texts)), dtype=bool)
        for output in program.outputs:
            if isinstance(output, Allow):
                allowed[..., vocabulary.codes[output.token]] = one.here(output.condition)
        return (allowed,)
    first = program.outputs[0]
    if isinstance(first, Next):
        return (one.here(first.value),)
    scored = [output for output in program.outputs if isinstance(output, syntax.Score)]
    scores = np.stack([one.here(output.value) for output in scored], axis=-1)
    codes = np.array([vocabulary.codes[output.token] for output in scored])
    return (codes[scores.argmax(-1)],)


class _Run:
    """Some rows, and the values of the lines so far."""

    def __init__(self, rows: NDArray[np.int64], vocabulary: Vocabulary) -> None:
        self.rows, self.vocabulary = rows, vocabulary
        n = rows.shape[1]
        self.kinds: dict[str, syntax.Kind] = {"token": "token", "position": "number"}
        self.values: dict[str, Values] = {
            "token": rows,
            "position": np.broadcast_to(np.arange(n), rows.shape),
        }
        self.seen = np.tril(np.ones((n, n), dtype=bool)) & (rows != NONE)[:, None, :]

    def lines(self, lines: Sequence[syntax.Assignment]) -> dict[str, Values]:
        """Name → values."""
        for line in lines:
            self.values[line.name] = self.here(line.expression)
            self.kinds[line.name] = syntax.kind_of(line.expression, self.kinds)
        return {line.name: self.values[line.name] for line in lines}

    def here(self, expression: Expression) -> Values:
        """Values ``[row, pos]``."""
        return np.broadcast_to(self.value(expression, pair=False), self.rows.shape)

    def value(self, part: Expression, *, pair: bool) -> Values:
        """Values, ``[row, pos]`` or with ``pair`` such that they fit ``[row, query, key]``."""
        match part:
            case syntax.Token() | syntax.Position() | syntax.Name():
                name = part.name if isinstance(part, syntax.Name) else type(part).__name__.lower()
                return self.values[name][:, :, None] if pair else self.values[name]
            case syntax.Key(name):
                return self.values[name][:, None, :]
            case syntax.Literal_(text):
                return np.asarray(self.vocabulary.codes[text])
            case syntax.Number(value) | syntax.Boolean(value):
                return np.asarray(value)
            case syntax.Nothing():
                return np.asarray(NONE)
            case syntax.Not(of):
                return ~self.value(of, pair=pair)
            case syntax.And(left, right):
                return self.value(left, pair=pair) & self.value(right, pair=pair)
            case syntax.Or(left, right):
                return self.value(left, pair=pair) | self.value(right, pair=pair)
            case syntax.In(value, tokens):
                codes = [self.vocabulary.codes[token] for token in tokens]
                return np.isin(self.value(value, pair=pair), codes)
            case syntax.Compare():
                return self._compared(part, pair)
            case syntax.Arithmetic():
                return self._computed(part, pair)
            case syntax.Choice(then, condition, other):
                return np.where(
                    self.value(condition, pair=pair),
                    self.value(then, pair=pair),
                    self.value(other, pair=pair),
                )
        return self._looked(part, pair)

    def _looked(self, part: Expression, pair: bool) -> Values:
        match part:
            case syntax.Count(where):
                found = self.chosen(where).sum(-1)
            case syntax.Average(value, where):
                chosen = self.chosen(where)
                total = (self.value(value, pair=True) * chosen).sum(-1)
                found = total / np.maximum(chosen.sum(-1), 1)
            case syntax.Pick():
                found = self._picked(part)
            case syntax.Table():
                found = self._tabulated(part)
            case _:
                raise TypeError(f"{type(part).__name__} is no part of the language")
        return found[:, :, None] if pair else found

    def chosen(self, where: Expression) -> NDArray[np.bool_]:
        """The keys that satisfy a condition, ``[row, query, key]``."""
        return np.asarray(self.value(where, pair=True) & self.seen)

    def _picked(self, part: syntax.Pick) -> Values:
        chosen = self.chosen(part.where)
        value = np.broadcast_to(self.value(part.value, pair=True), chosen.shape)
        n = chosen.shape[-1]
        if part.which in ("first", "last"):
            rank = np.broadcast_to(np.arange(n), chosen.shape)
        else:
            rank = self._ranked(value, self.kind(part.value))
        if part.which in ("commonest", "rarest"):
            equals = -rank if part.which == "commonest" else rank
            rank = _times(rank, chosen) * (np.ptp(rank) + 1) + equals
        far = np.iinfo(np.int64).max
        lowest = part.which in ("first", "least", "rarest")
        masked = np.where(chosen, rank, far if lowest else -far)
        at = masked.argmin(-1) if lowest else masked.argmax(-1)
        found = np.take_along_axis(value, at[..., None], axis=-1)[..., 0]
        empty: Values = np.asarray(NONE if self.kind(part.value) == "token" else 0)
        return np.where(chosen.any(-1), found, empty).astype(value.dtype)

    def _compared(self, part: syntax.Compare, pair: bool) -> Values:
        left, right = (self.value(side, pair=pair) for side in (part.left, part.right))
        if self.kind(part.left) != "token" or part.relation in ("==", "!="):
            return np.asarray(COMPARE[part.relation](left, right))
        known = (left != NONE) & (right != NONE)
        ranks = self._ranked(left, "token"), self._ranked(right, "token")
        return np.asarray(COMPARE[part.relation](*ranks) & known)

    def _ranked(self, value: Values, kind: str) -> NDArray[np.int64]:
        if kind != "token":
            return value.astype(np.int64)
        return np.where(value == NONE, NONE, self.vocabulary.order[value]).astype(np.int64)

    def _computed(self, part: syntax.Arithmetic, pair: bool) -> Values:
        left, right = (self.value(side, pair=pair) for side in (part.left, part.right))
        if self.kind(part.left) == "token":
            by = np.asarray(-right if part.operator == "-" else right)  # of a number: no axes
            return self.vocabulary.shifted(left, by)
        if part.operator == "%":
            right = np.where(right == 0, 1, right)
        return np.asarray(_ARITHMETIC[part.operator](left, right))

    def _tabulated(self, table: syntax.Table) -> Values:
        arguments = [self.here(argument) for argument in table.arguments]
        found = self.here(table.default).copy()
        for texts, value in table.entries:
            codes = [self.vocabulary.codes.get(text, -2) for text in texts]
            at = np.logical_and.reduce([a == c for a, c in zip(arguments, codes, strict=True)])
            found = np.where(at, self.value(value, pair=False), found)
        return found

    def kind(self, part: Expression) -> str:
        """Whether a value is a token, a number or a truth."""
        return syntax.kind_of(part, self.kinds)


def _times(rank: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the chosen keys have each key's value; what is not chosen may get anything."""
    rank = rank - rank.min()
    size = int(rank.max()) + 1
    if (rank == rank[:, :1]).all():  # the same value from every query
        is_value = (rank[:, 0, :, None] == np.arange(size)).astype(np.float32)
        times = chosen.astype(np.float32) @ is_value
        return np.take_along_axis(times, rank, axis=-1).astype(np.int64)
    found = np.zeros(chosen.shape, dtype=np.int64)
    for code in range(size):
        has = chosen & (rank == code)
        found += has * has.sum(-1, keepdims=True)
    return found
