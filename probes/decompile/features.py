"""The values that a program's decisions may speak of, and the conditions that they are cut into.

A *feature* is a value with its expression: the current token, what a head's primitive picks (a
token), how many positions it holds of each token (a number), the position modulo a small number. A
*column* is what one branch of a decision asks: is this token that one, are two of them equal, which
comes first in order, is a count, or the difference of two counts, at most k. Columns carry a cost,
so that of two that decide alike the simpler one is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from interp.rasp import syntax
from interp.rasp.evaluation import NONE, Vocabulary, evaluate
from interp.rasp.syntax import (
    And,
    Arithmetic,
    Assignment,
    Boolean,
    Compare,
    Count,
    Expression,
    Key,
    Literal_,
    Name,
    Nothing,
    Number,
    Pick,
    Position,
    Token,
    Which,
    children,
)
from probes.decompile.primitives import BEFORE, Primitive, lag
from probes.decompile.rows import Rows

__all__ = ["Column", "Feature", "columns", "expressions", "features", "values_of"]

_SMALL, _FEW_TOKENS, _PERIODS = 8, 3, (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Feature:
    """A value by position.

    Attributes:
        expression: How a program writes it: a name of a line, or a short expression.
        kind: ``token`` or ``number``.
        lines: The lines that it needs.
        source: Index of the head that fetches it; −1 for what is there without attention.
        cost: Simpler ones have less.
    """

    expression: Expression
    kind: str
    lines: tuple[Assignment, ...] = ()
    source: int = -1
    cost: int | float = 0


@dataclass(frozen=True)
class Column:
    """What one branch may ask.

    Attributes:
        values: Of every decision: 0 or 1, or integers to be cut by a threshold.
        expression: A condition, or the number that is compared.
        features: Which features it speaks of.
        cost: Of asking it.
    """

    values: NDArray[np.int64]
    expression: Expression
    features: tuple[Feature, ...]
    cost: int | float
    number: bool = False


def features(
    rows: Rows,
    fetched: Sequence[tuple[int, Primitive]],
    counting: Sequence[int] = (),
    *,
    positions: bool = True,
) -> list[Feature]:
    """Everything that decisions may speak of.

    Args:
        rows: Whose tokens are spoken of.
        fetched: (index of a head, what it does); several a head where several fit as well.
        counting: Of each layer with a head that is needed, in order, the index of that head: a
            later one may count what an earlier one helped to tell.
        positions: Whether the model knows positions.
    """
    found = [Feature(Token(), "token")]
    for p in _PERIODS if positions else ():
        found.append(Feature(Arithmetic("%", Position(), Number(p)), "number", cost=2 + p / 8))
    before = any(one.where == lag(1).where for _, one in fetched)
    for number, one in fetched:
        found += _tokens(number, one, before)
        found += _counts(number, one, rows, before)
    found += _nested(rows, counting)
    kept: dict[tuple[Expression, tuple[Assignment, ...]], Feature] = {}
    for feature in sorted(found, key=lambda f: f.cost):
        kept.setdefault((feature.expression, feature.lines), feature)
    return list(kept.values())


def _tokens(number: int, one: Primitive, before: bool) -> Iterator[Feature]:
    """What a primitive picks, and the token before that, as lines of their own."""
    by_content = any(
        isinstance(part, Key) and part.name != "position" for part in children(one.where, deep=True)
    )
    if not one.single and not by_content:
        return
    ways: list[Which] = [one.which] if one.which else ["last"] if one.single else ["last", "first"]
    for way in ways:
        picked = Pick(way, Key("token"), one.where)
        if picked == BEFORE.expression:
            yield Feature(Name("before"), "token", (BEFORE,), number, 1.0)
            continue
        name = _name_of(one)
        line = Assignment(name if way == ways[0] else f"{name}_{way}", picked)
        yield Feature(Name(line.name), "token", (*one.lines, line), number, one.cost + 0.1)
        if (before and not one.single) or (before and one.which):
            line = Assignment(f"before_{line.name}", Pick(way or "last", Key("before"), one.where))
            yield Feature(
                Name(line.name), "token", (BEFORE, *one.lines[1:], line), number, one.cost + 1
            )


def _name_of(one: Primitive) -> str:
    words = "".join(c if c.isalnum() else " " for c in one.words.lower()).split()
    short = [w for w in words if w not in {"the", "that", "is", "one", "like", "this", "of", "a"}]
    return "_".join(short[:4]) or "picked"


def _counts(number: int, one: Primitive, rows: Rows, before: bool) -> Iterator[Feature]:
    if one.single:
        return
    content = rows.content()
    everything = one.where == Boolean(True)
    if not everything:
        yield Feature(Count(one.where), "number", one.lines, number, one.cost + 1)
    texts = [rows.vocabulary.texts[c] for c in content] if len(content) <= _SMALL else []
    for text in texts:
        is_it: Expression = Compare("==", Key("token"), Literal_(text))
        where = is_it if everything else And(one.where, is_it)
        yield Feature(Count(where), "number", one.lines, number, one.cost + 1)
    if before and everything:
        for first in texts:
            for second in texts:
                pair = And(
                    Compare("==", Key("before"), Literal_(first)),
                    Compare("==", Key("token"), Literal_(second)),
                )
                yield Feature(Count(pair), "number", (BEFORE,), number, 4.0)


def _nested(rows: Rows, counting: Sequence[int]) -> Iterator[Feature]:
    """Counts of positions where a token comes after another one did, of those after such a one, …:
    one level a layer that counts."""
    content = rows.content()
    if not 2 <= len(content) <= _FEW_TOKENS:
        return
    texts = [rows.vocabulary.texts[code] for code in content]
    some = Number(1)
    chains: list[tuple[str, Expression, tuple[Assignment, ...]]] = [
        (text, Compare("==", Key("token"), Literal_(text)), ()) for text in texts
    ]
    for level, head in enumerate(counting[1:], start=1):
        longer: list[tuple[str, Expression, tuple[Assignment, ...]]] = []
        for word, where, lines in chains:
            for text in texts:
                if word.endswith(text):
                    continue
                is_it = Compare("==", Token(), Literal_(text))
                met = And(is_it, Compare(">=", Count(where), some))
                name = (
                    f"after_{len(word)}_{word}{text}"
                    if not word.isalnum()
                    else f"{text}_after_{word}"
                )
                line = Assignment(_plain(name), met)
                key = Key(line.name)
                longer.append((word + text, key, (*lines, line)))
                yield Feature(Count(key), "number", (*lines, line), head, 2.0 + level)
        chains = longer


def _plain(name: str) -> str:
    found = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return found if found[0].isalpha() else f"x{found}"


def values_of(found: Sequence[Feature], rows: Rows) -> list[NDArray[np.int64]]:
    """Each feature's values at the asked positions."""
    lines: dict[str, Assignment] = {}
    for feature in found:
        lines |= {line.name: line for line in feature.lines}
    extra = [Assignment(f"feature{i}_", f.expression) for i, f in enumerate(found)]
    every = evaluate([*lines.values(), *extra], rows.tokens, rows.vocabulary)
    return [every[line.name][rows.asked].astype(np.int64) for line in extra]


def columns(
    found: Sequence[Feature], values: Sequence[NDArray[np.int64]], rows: Rows
) -> list[Column]:
    """Every question that a branch may ask of the features."""
    pairs = list(zip(found, values, strict=True))
    tokens = [(f, v) for f, v in pairs if f.kind == "token"]
    numbers = [(f, v) for f, v in pairs if f.kind == "number"]
    result: list[Column] = []
    for feature, value in tokens:
        result += _is_one_of(feature, value, rows)
    for (f, v), (g, w) in combinations(tokens, 2):
        result += _compared(f, v, g, w, rows.vocabulary)
    for feature, value in numbers:
        result.append(Column(value, feature.expression, (feature,), feature.cost + 1, number=True))
    counts = [(f, v) for f, v in numbers if isinstance(f.expression, Count)]
    for (f, v), (g, w) in combinations(counts, 2):
        difference = Arithmetic("-", f.expression, g.expression)
        cost = f.cost + g.cost + 0.5
        result.append(Column(v - w, difference, (f, g), cost, number=True))
    return [c for c in result if c.values.size and c.values.min() != c.values.max()]


def _is_one_of(feature: Feature, value: NDArray[np.int64], rows: Rows) -> Iterator[Column]:
    content = rows.content()
    present = np.unique(value)
    for code in present.tolist():
        if code == NONE:
            expression: Expression = Compare("==", feature.expression, Nothing())
        elif code in content and len(content) > _SMALL:
            continue
        else:
            text = rows.vocabulary.texts[code]
            expression = Compare("==", feature.expression, Literal_(text))
        hit = (value == code).astype(np.int64)
        yield Column(hit, expression, (feature,), feature.cost + 1)


def _compared(
    f: Feature, v: NDArray[np.int64], g: Feature, w: NDArray[np.int64], vocabulary: Vocabulary
) -> Iterator[Column]:
    cost = f.cost + g.cost + 1.5
    equal = ((v == w) & (v != NONE)).astype(np.int64)
    yield Column(equal, Compare("==", f.expression, g.expression), (f, g), cost)
    if len(vocabulary.numbers) < 3:
        return
    known = (v != NONE) & (w != NONE)
    rank = [np.where(x == NONE, NONE, vocabulary.order[x]) for x in (v, w)]
    for relation, hit in (("<", rank[0] < rank[1]), (">", rank[0] > rank[1])):
        expression = Compare(relation, f.expression, g.expression)  # type: ignore[arg-type]
        yield Column((hit & known).astype(np.int64), expression, (f, g), cost + 0.1)


def expressions(
    found: Sequence[Feature], rows: Rows
) -> Iterator[tuple[Expression, Feature | None]]:
    """What may be chosen as the next token: a feature, the number above or below, a fixed token."""
    numbers = len(rows.vocabulary.numbers) >= 3
    for feature in found:
        if feature.kind != "token":
            continue
        yield feature.expression, feature
        if numbers:
            for operator in ("+", "-"):
                shifted = Arithmetic(operator, feature.expression, Number(1))
                yield shifted, feature
    for text in rows.vocabulary.texts:
        yield syntax.Literal_(text), None
