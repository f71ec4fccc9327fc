"""The questions that a branch of a decision may ask, and the values that may be chosen as answers.

A *column* is one question about features: is this token that one, are two of them equal, which
comes first in order, is a count, a remainder of it, or the difference of two counts, at most k.
Columns carry a cost, so that of two that decide alike the simpler one is taken; of those that are
alike on every row only the simplest is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from interp.program import syntax
from interp.program.evaluation import NONE, Vocabulary
from interp.program.syntax import (
    Arithmetic,
    Comparison,
    Constant,
    CountWhere,
    Expression,
    Literal_,
    Nothing,
)
from probes.decompile.features import Feature
from probes.decompile.rows import Rows

__all__ = ["Column", "columns", "expressions"]

_Valued = tuple[Feature, NDArray[np.int64]]
_SMALL, _REMAINDERS = 8, (2, 3)
_PAIRED = 12
"""Features, the simplest, that are compared with each other; the others with the current token."""


@dataclass(frozen=True)
class Column:
    """What one branch may ask.

    Attributes:
        values: Of every decision: 0 or 1, or integers to be cut by a threshold.
        expression: A condition, or the number that is compared.
        features: Which features it speaks of.
        cost: Of asking it.
        number: Whether a threshold is to be put to it.
        least, most: Bounds that a number keeps on all rows; None where it has none.
    """

    values: NDArray[np.int64]
    expression: Expression
    features: tuple[Feature, ...]
    cost: int | float
    number: bool = False
    least: int | None = None
    most: int | None = None


def columns(
    found: Sequence[Feature], values: Sequence[NDArray[np.int64]], rows: Rows
) -> list[Column]:
    """Every question that a branch may ask of the features."""
    pairs = list(zip(found, values, strict=True))
    tokens = [(f, v) for f, v in pairs if f.kind == "token"]
    result: list[Column] = []
    for feature, value in tokens:
        result += _is_one_of(feature, value, rows)
    for number, ((f, v), (g, w)) in _numbered_pairs(tokens):
        if number < _PAIRED:
            result += _compared(f, v, g, w, rows.vocabulary)
    result += _numbers([(f, v) for f, v in pairs if f.kind == "number"])
    return _different(result)


def _numbered_pairs(of: Sequence[_Valued]) -> Iterator[tuple[int, tuple[_Valued, _Valued]]]:
    """Pairs, each with the place of its second part; 0 where the first part is the first of all."""
    for (i, one), (j, other) in combinations(enumerate(of), 2):
        yield (0 if i == 0 else j), (one, other)


def _numbers(numbers: Sequence[_Valued]) -> Iterator[Column]:
    for feature, value in numbers:
        yield _number(value, feature.expression, (feature,), feature.cost + 1)
        if _is_remainder(feature.expression):
            continue
        for p in _REMAINDERS:
            rest = Arithmetic("%", feature.expression, Constant(p))
            yield _number(value % p, rest, (feature,), feature.cost + 2 + p / 8)
    counts: dict[str, list[_Valued]] = {}
    for feature, value in numbers:
        if isinstance(feature.expression, CountWhere):
            counts.setdefault(feature.origin, []).append((feature, value))
    pairs = (pair for alike in counts.values() for pair in _numbered_pairs(alike))
    for number, ((f, v), (g, w)) in pairs:
        if number >= _PAIRED:
            continue
        difference = Arithmetic("-", f.expression, g.expression)
        cost = f.cost + g.cost + 0.5
        yield _number(v - w, difference, (f, g), cost)
        same = Comparison("==", f.expression, g.expression)  # takes two cuts of the difference
        yield Column((v == w).astype(np.int64), same, (f, g), cost + 0.1)
        for p in _REMAINDERS:
            rest = Arithmetic("%", difference, Constant(p))
            yield _number((v - w) % p, rest, (f, g), cost + 1 + p / 8)


def _number(
    values: NDArray[np.int64], expression: Expression, of: tuple[Feature, ...], cost: int | float
) -> Column:
    least = 0 if isinstance(expression, CountWhere) or _is_remainder(expression) else None
    most = None
    if isinstance(expression, Arithmetic) and isinstance(expression.right, Constant):
        most = expression.right.value - 1 if expression.operator == "%" else None
    return Column(values, expression, of, cost, number=True, least=least, most=most)


def _is_remainder(expression: Expression) -> bool:
    return isinstance(expression, Arithmetic) and expression.operator == "%"


def _different(found: Sequence[Column]) -> list[Column]:
    """Of questions with the same answers the simplest; none that is always answered alike."""
    kept: dict[bytes, Column] = {}
    for column in sorted(found, key=lambda c: c.cost):
        if column.values.size and column.values.min() != column.values.max():
            kept.setdefault(column.values.astype(np.int32).tobytes(), column)
    return list(kept.values())


def _is_one_of(feature: Feature, value: NDArray[np.int64], rows: Rows) -> Iterator[Column]:
    content, named = rows.content(), rows.common(_SMALL)
    present = np.unique(value)
    for code in present.tolist():
        if code == NONE:
            expression: Expression = Comparison("==", feature.expression, Nothing())
        elif code in content and code not in named:
            continue
        else:
            text = rows.vocabulary.texts[code]
            expression = Comparison("==", feature.expression, Literal_(text))
        hit = (value == code).astype(np.int64)
        yield Column(hit, expression, (feature,), feature.cost + 1)


def _compared(
    f: Feature, v: NDArray[np.int64], g: Feature, w: NDArray[np.int64], vocabulary: Vocabulary
) -> Iterator[Column]:
    cost = f.cost + g.cost + 1.5
    equal = ((v == w) & (v != NONE)).astype(np.int64)
    yield Column(equal, Comparison("==", f.expression, g.expression), (f, g), cost)
    if len(vocabulary.numbers) < 3:
        return
    known = (v != NONE) & (w != NONE)
    rank = [np.where(x == NONE, NONE, vocabulary.order[x]) for x in (v, w)]
    for relation, hit in (("<", rank[0] < rank[1]), (">", rank[0] > rank[1])):
        expression = Comparison(relation, f.expression, g.expression)  # type: ignore[arg-type]
        yield Column((hit & known).astype(np.int64), expression, (f, g), cost + 0.1)


def _shifted(value: Expression, by: int) -> Expression:
    return Arithmetic("+" if by > 0 else "-", value, Constant(abs(by))) if by else value


def expressions(
    found: Sequence[Feature], rows: Rows
) -> Iterator[tuple[Expression, Feature | None]]:
    """What may be chosen as the next token: a feature, the number above or below, the token that
    writes a count, a fixed token."""
    written = rows.vocabulary.numbers
    numbers = len(written) >= 3
    for feature in found:
        if feature.kind == "number":
            if numbers:
                least = min(written, key=lambda code: abs(written[code]))
                first = Literal_(rows.vocabulary.texts[least])
                for shift in (-written[least], -1 - written[least]):
                    number = _shifted(feature.expression, shift)
                    yield Arithmetic("+", first, number), feature
            continue
        yield feature.expression, feature
        if numbers:
            for operator in ("+", "-"):
                shifted = Arithmetic(operator, feature.expression, Constant(1))
                yield shifted, feature
    for text in rows.vocabulary.texts:
        yield syntax.Literal_(text), None
