"""The values that a program's decisions may depend on.

A *feature* is a value with its expression in the program's language: the current token, the token
that a head's primitive picks, how many positions back that is, how often a token occurs among the
positions that it attends to, which token is the commonest of them, the position modulo a small
number. :func:`columns` makes the questions about features that a decision may ask.

Opening and closing tokens, if every row has as many of one kind as of the other:

    depth  = count(key.token in {"(", "["}) - count(key.token in {")", "]"})
    opened = last(key.token where key.depth == depth && key.token in {"(", "["})

Which tokens open is not given. Of all ways to split the varying tokens into two kinds, the first is
taken for which no prefix of a row has more of the second kind than of the first, and every row ends
with as many of both. ``opened`` is then the innermost token that is still open. It takes two
layers: one that counts and one that compares the counts.

Not for rows that end in the middle of a string, where the counts need not balance.

Questions are what a branch of a decision may test; expressions are the values that it may choose as
an answer.

A *column* is one question about features: whether a token is a certain one, whether two tokens are
equal or which comes first in order, whether a count, its remainder, or the difference of two counts
is at most k. Columns have a cost, so that the simpler of two that decide alike is chosen; of
columns that have the same answers on every row only the simplest is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from interp.program import syntax
from interp.program.evaluation import NONE, Vocabulary, line_values
from interp.program.syntax import (
    And,
    Assignment,
    Comparison,
    Constant,
    CountWhere,
    Expression,
    In,
    Key,
    Literal_,
    Name,
    Not,
    Nothing,
    Operation,
    Pick,
    Position,
    Token,
    Truth,
    Which,
    children,
)
from probes.decompile.primitives import BEFORE, Primitive, lag
from probes.decompile.rows import TokenRows

_FEWEST, _MOST = 3, 8


def bracket_lines(rows: TokenRows) -> tuple[Assignment, Assignment] | None:
    """Return the lines ``depth`` and ``opened`` of a program; None if no two kinds of tokens
    balance.

    None also for fewer than three or more than eight varying tokens. (For two tokens the difference
    of their counts says as much without a line of its own.)
    """
    content = rows.content()
    if not _FEWEST <= len(content) <= _MOST:
        return None
    each = rows.tokens[..., None] == content
    for signs in product((1, -1), repeat=len(content)):
        height = (each * np.array(signs)).sum(-1).cumsum(1)
        if -1 in signs and height.min() >= 0 and height.max() > 0 and not height[:, -1].any():
            texts = [rows.vocabulary.texts[code] for code in content.tolist()]
            opening, closing = (
                In(Key("token"), tuple(t for t, s in zip(texts, signs, strict=True) if s == sign))
                for sign in (1, -1)
            )
            depth = Assignment("depth", Operation("-", CountWhere(opening), CountWhere(closing)))
            same = Comparison("==", Key("depth"), Name("depth"))
            return depth, Assignment("opened", Pick("last", Key("token"), And(same, opening)))
    return None


_COUNTED, _SMALL, _FEW_TOKENS, _PERIODS = 16, 8, 3, (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Feature:
    """A value at every position, with the expression that computes it.

    Attributes:
        expression: The value as a program writes it: the name of a line, or a short expression.
        kind: ``token`` or ``number``.
        lines: The lines that the expression needs.
        source: Index of the head that fetches it; −1 if it needs no head or several.
        cost: How complex it is; simpler features cost less.
        origin: The primitive that it is from, in words: numbers of one origin are compared with
            each other.
    """

    expression: Expression
    kind: str
    lines: tuple[Assignment, ...] = ()
    source: int = -1
    cost: int | float = 0
    origin: str = ""


def features(
    rows: TokenRows,
    fetched: Sequence[tuple[int, Primitive]],
    layers: int = 0,
    *,
    positions: bool = True,
) -> list[Feature]:
    """Return all features that a program's decisions may depend on, the simplest first.

    Args:
        rows: The rows, whose tokens the features are about.
        fetched: (index of a head, its primitive); one head may have several.
        layers: The number of layers with a needed head: a later one may count what an earlier one
            has computed.
        positions: Whether the model has position information.
    """
    found = [Feature(Token(), "token")]
    for p in _PERIODS if positions else ():
        found.append(Feature(Operation("%", Position(), Constant(p)), "number", cost=2 + p / 8))
    before = any(one.where == lag(1).where for _, one in fetched)
    for number, one in fetched:
        found += _tokens(number, one, before)
        found += _distances(number, one)
        found += _counts(number, one, rows, before)
        found += _frequent(number, one, rows)
    found += _nested_counts(rows, layers)
    found += _behind(rows, layers)
    if (lines := bracket_lines(rows)) is not None:
        found.append(Feature(Name(lines[0].name), "number", lines[:1], cost=2.0))
        if layers > 1:
            found.append(Feature(Name(lines[1].name), "token", lines, cost=3.0))
    kept: dict[tuple[Expression, tuple[Assignment, ...]], Feature] = {}
    for feature in sorted(found, key=lambda f: f.cost):
        kept.setdefault((feature.expression, feature.lines), feature)
    return list(kept.values())


def _tokens(number: int, one: Primitive, before: bool) -> Iterator[Feature]:
    """Yield the token that a primitive picks, and the token before that one, each as a line."""
    by_content = any(
        isinstance(part, Key) and part.name != "position" for part in children(one.where, deep=True)
    )
    if _is_literal(one.where) or (not one.single and not by_content):
        return
    ways: list[Which] = [one.which] if one.which else ["last"] if one.single else ["last", "first"]
    for way in ways:
        picked = Pick(way, Key("token"), one.where)
        if picked == BEFORE.expression:
            yield Feature(Name("before"), "token", (BEFORE,), number, 1.0)
            continue
        name = one.name
        line = Assignment(name if way == ways[0] else f"{name}_{way}", picked)
        yield Feature(Name(line.name), "token", (*one.lines, line), number, one.cost + 0.1)
        if (before and not one.single) or (before and one.which):
            line = Assignment(f"before_{line.name}", Pick(way or "last", Key("before"), one.where))
            others = [needed for needed in one.lines if needed != BEFORE]
            yield Feature(Name(line.name), "token", (BEFORE, *others, line), number, one.cost + 1)


def _is_literal(where: Expression) -> bool:
    """Return whether a condition requires the key to hold one named token, so that fetching it only
    says whether there is one."""
    return (
        isinstance(where, Comparison)
        and where.relation == "=="
        and where.left == Key("token")
        and isinstance(where.right, Literal_)
    )


def _distances(number: int, one: Primitive) -> Iterator[Feature]:
    """Yield the position of the last key that a condition on tokens picks, and how far back it is;
    for a condition on one token, the position of its first occurrence."""
    if not one.single and _is_literal(one.where):
        first = Pick("first", Key("position"), one.where)
        line = Assignment(f"first_{one.name}", first)
        yield Feature(
            Name(line.name), "number", (*one.lines, line), number, one.cost + 2, one.words
        )
    speaks = [part for part in children(one.where, deep=True) if isinstance(part, Key)]
    if one.which != "last" or any(part.name == "position" for part in speaks):
        return
    place = Pick("last", Key("position"), one.where)
    line = Assignment(f"at_{one.name}", place)
    yield Feature(Name(line.name), "number", (*one.lines, line), number, one.cost + 2, one.words)
    back = Operation("-", Position(), place)
    line = Assignment(f"since_{one.name}", back)
    yield Feature(Name(line.name), "number", (*one.lines, line), number, one.cost + 1, one.words)


def _frequent(number: int, one: Primitive, rows: TokenRows) -> Iterator[Feature]:
    """Yield the commonest and the rarest token among the positions that a primitive attends to."""
    if one.single or {Key("token"), Key("before")} & set(children(one.where, deep=True)):
        return
    content = rows.content()
    others = [c for c in np.unique(rows.tokens[rows.tokens >= 0]).tolist() if c not in content]
    named = tuple(rows.vocabulary.texts[c] for c in others)
    parts = [one.where] if one.where != Truth(True) else []
    parts += [Not(In(Key("token"), named))] if named else []
    where: Expression = parts[0] if parts else Truth(True)
    where = And(where, parts[1]) if len(parts) > 1 else where
    ways: tuple[Which, ...] = ("commonest", "rarest")
    for way in ways:
        name = "token" if one.where == Truth(True) else one.name
        line = Assignment(f"{way}_{name}", Pick(way, Key("token"), where))
        yield Feature(Name(line.name), "token", (*one.lines, line), number, one.cost + 4, one.words)


def _counts(number: int, one: Primitive, rows: TokenRows, before: bool) -> Iterator[Feature]:
    if one.single and not _is_literal(one.where):
        return
    everything = one.where == Truth(True)
    if not everything:
        cost, origin = one.cost + 1, one.family or one.words
        if _is_literal(one.where):
            cost, origin = 1, ""
        yield Feature(CountWhere(one.where), "number", one.lines, number, cost, origin)
    if _is_literal(one.where):
        return
    texts = [rows.vocabulary.texts[c] for c in rows.common(_COUNTED)]
    for text in texts:
        is_it: Expression = Comparison("==", Key("token"), Literal_(text))
        where = is_it if everything else And(one.where, is_it)
        origin = "" if everything else one.words
        yield Feature(CountWhere(where), "number", one.lines, number, one.cost + 1, origin)
    if before and everything:
        changed = Comparison("!=", Key("before"), Key("token"))
        yield Feature(CountWhere(changed), "number", (BEFORE,), number, 4.0, "pairs")
        few = texts if len(texts) <= _SMALL else []
        for first in few:
            for second in few:
                pair = And(
                    Comparison("==", Key("before"), Literal_(first)),
                    Comparison("==", Key("token"), Literal_(second)),
                )
                yield Feature(CountWhere(pair), "number", (BEFORE,), number, 4.0, "pairs")


def _nested_counts(rows: TokenRows, layers: int) -> Iterator[Feature]:
    """Yield counts of positions at which one token comes after another occurred, of those after
    such a position, and so on: one level for each layer that counts."""
    content = rows.content()
    if not 2 <= len(content) <= _FEW_TOKENS:
        return
    texts = [rows.vocabulary.texts[code] for code in content]
    some = Constant(1)
    chains: list[tuple[str, Expression, tuple[Assignment, ...]]] = [
        (text, Comparison("==", Key("token"), Literal_(text)), ()) for text in texts
    ]
    for level in range(1, layers):
        longer: list[tuple[str, Expression, tuple[Assignment, ...]]] = []
        for word, where, lines in chains:
            for text in texts:
                if word.endswith(text):
                    continue
                is_it = Comparison("==", Token(), Literal_(text))
                met = And(is_it, Comparison(">=", CountWhere(where), some))
                name = (
                    f"after_{len(word)}_{word}{text}"
                    if not word.isalnum()
                    else f"{text}_after_{word}"
                )
                line = Assignment(_plain(name), met)
                key = Key(line.name)
                longer.append((word + text, key, (*lines, line)))
                yield Feature(CountWhere(key), "number", (*lines, line), -1, 2.0 + level, "nested")
        chains = longer


def _behind(rows: TokenRows, layers: int) -> Iterator[Feature]:
    """Yield counts of positions at which one token had occurred less often than another.

    This counts a comparison of two counts, so it takes two layers.
    """
    content = rows.content()
    if layers < 2 or not 2 <= len(content) <= _FEW_TOKENS:
        return
    for number, pair in enumerate(permutations(content.tolist(), 2)):
        texts = [rows.vocabulary.texts[code] for code in pair]
        counts = [CountWhere(Comparison("==", Key("token"), Literal_(t))) for t in texts]
        signs = ("behind", "ahead")[number % 2] + (f"_{number // 2 + 1}" if number > 1 else "")
        name = f"fewer_{texts[0]}_than_{texts[1]}" if "".join(texts).isalnum() else signs
        line = Assignment(name, Comparison("<", *counts))
        yield Feature(CountWhere(Key(name)), "number", (line,), -1, 3.0, "compared")


def _plain(name: str) -> str:
    found = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return found if found[0].isalpha() else f"x{found}"


def values_of(found: Sequence[Feature], rows: TokenRows) -> list[NDArray[np.int64]]:
    """Evaluate features at the positions that ``rows.asked`` marks.

    Returns:
        For each feature an integer array with one value for each marked position, row by row.
    """
    lines: dict[str, Assignment] = {}
    for feature in found:
        lines |= {line.name: line for line in feature.lines}
    extra = [Assignment(f"feature{i}_", f.expression) for i, f in enumerate(found)]
    every = line_values([*lines.values(), *extra], rows.tokens, rows.vocabulary)
    return [every[line.name][rows.asked].astype(np.int64) for line in extra]


_Valued = tuple[Feature, NDArray[np.int64]]
_NAMED, _REMAINDERS = 8, (2, 3)
_PAIRED = 12
"""Number of features, the simplest first, of which all pairs are compared. Every later one is
compared with the first alone, which is the current token; all pairs would be too many questions for
the decision tree."""


@dataclass(frozen=True)
class Question:
    """A condition, or a number to compare with a threshold, that a decision tree may branch on.

    Attributes:
        values: Its value at every decision (a position where the tree must decide): 0 or 1 for a
            condition, any integer for a number.
        expression: The condition or the number, as an expression of the program.
        features: The features that occur in the expression.
        cost: How complex the expression is; among nearly equally good splits the cheapest is taken.
        number: Whether it is a number; the tree then chooses a threshold.
        least, most: The smallest and largest value that a number can have on any row, where its
            form gives one; else None.
    """

    values: NDArray[np.int64]
    expression: Expression
    features: tuple[Feature, ...]
    cost: int | float
    number: bool = False
    least: int | None = None
    most: int | None = None


def columns(
    found: Sequence[Feature], values: Sequence[NDArray[np.int64]], rows: TokenRows
) -> list[Question]:
    """Return all questions that a branch of the program may ask about the features.

    For features that are tokens: whether one is a certain token, and comparisons of two. For
    features that are numbers: these numbers and differences of two counts, also modulo small
    numbers, each to be compared with a threshold; and whether two counts are equal.

    Args:
        found: The features.
        values: The values of each feature, one for every decision.
        rows: The rows, which give the vocabulary.
    """
    pairs = list(zip(found, values, strict=True))
    tokens = [(f, v) for f, v in pairs if f.kind == "token"]
    result: list[Question] = []
    for feature, value in tokens:
        result += _is_one_of(feature, value, rows)
    for number, ((f, v), (g, w)) in _numbered_pairs(tokens):
        if number < _PAIRED:
            result += _compare(f, v, g, w, rows.vocabulary)
    result += _numbers([(f, v) for f, v in pairs if f.kind == "number"])
    return _different(result)


def _numbered_pairs(of: Sequence[_Valued]) -> Iterator[tuple[int, tuple[_Valued, _Valued]]]:
    """Yield all pairs, each with the index of its second element; with 0 if the first element is
    the first of all."""
    for (i, one), (j, other) in combinations(enumerate(of), 2):
        yield (0 if i == 0 else j), (one, other)


def _numbers(numbers: Sequence[_Valued]) -> Iterator[Question]:
    for feature, value in numbers:
        yield _number(value, feature.expression, (feature,), feature.cost + 1)
        if _is_remainder(feature.expression):
            continue
        for p in _REMAINDERS:
            rest = Operation("%", feature.expression, Constant(p))
            yield _number(value % p, rest, (feature,), feature.cost + 2 + p / 8)
    counts: dict[str, list[_Valued]] = {}
    for feature, value in numbers:
        if isinstance(feature.expression, CountWhere):
            counts.setdefault(feature.origin, []).append((feature, value))
    pairs = (pair for alike in counts.values() for pair in _numbered_pairs(alike))
    for number, ((f, v), (g, w)) in pairs:
        if number >= _PAIRED:
            continue
        difference = Operation("-", f.expression, g.expression)
        cost = f.cost + g.cost + 0.5
        yield _number(v - w, difference, (f, g), cost)
        same = Comparison("==", f.expression, g.expression)  # takes two cuts of the difference
        yield Question((v == w).astype(np.int64), same, (f, g), cost + 0.1)
        for p in _REMAINDERS:
            rest = Operation("%", difference, Constant(p))
            yield _number((v - w) % p, rest, (f, g), cost + 1 + p / 8)


def _number(
    values: NDArray[np.int64], expression: Expression, of: tuple[Feature, ...], cost: int | float
) -> Question:
    least = 0 if isinstance(expression, CountWhere) or _is_remainder(expression) else None
    most = None
    if isinstance(expression, Operation) and isinstance(expression.right, Constant):
        most = expression.right.value - 1 if expression.operator == "%" else None
    return Question(values, expression, of, cost, number=True, least=least, most=most)


def _is_remainder(expression: Expression) -> bool:
    return isinstance(expression, Operation) and expression.operator == "%"


def _different(found: Sequence[Question]) -> list[Question]:
    """Return the simplest of the questions with the same answers; questions with one answer
    throughout are dropped."""
    kept: dict[bytes, Question] = {}
    for column in sorted(found, key=lambda c: c.cost):
        if column.values.size and column.values.min() != column.values.max():
            kept.setdefault(column.values.astype(np.int32).tobytes(), column)
    return list(kept.values())


def _is_one_of(feature: Feature, value: NDArray[np.int64], rows: TokenRows) -> Iterator[Question]:
    content, named = rows.content(), rows.common(_NAMED)
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
        yield Question(hit, expression, (feature,), feature.cost + 1)


def _compare(
    f: Feature, v: NDArray[np.int64], g: Feature, w: NDArray[np.int64], vocabulary: Vocabulary
) -> Iterator[Question]:
    cost = f.cost + g.cost + 1.5
    equal = ((v == w) & (v != NONE)).astype(np.int64)
    yield Question(equal, Comparison("==", f.expression, g.expression), (f, g), cost)
    if len(vocabulary.numbers) < 3:
        return
    known = (v != NONE) & (w != NONE)
    rank = [np.where(x == NONE, NONE, vocabulary.order[x]) for x in (v, w)]
    for relation, hit in (("<", rank[0] < rank[1]), (">", rank[0] > rank[1])):
        expression = Comparison(relation, f.expression, g.expression)  # type: ignore[arg-type]
        yield Question((hit & known).astype(np.int64), expression, (f, g), cost + 0.1)


def _add_constant(value: Expression, by: int) -> Expression:
    return Operation("+" if by > 0 else "-", value, Constant(abs(by))) if by else value


def expressions(
    found: Sequence[Feature], rows: TokenRows
) -> Iterator[tuple[Expression, Feature | None]]:
    """Yield the values that may be chosen as the next token, each with its feature.

    These are a token feature, the token that writes the next or the previous number, the token that
    writes a count, and each fixed token (with None for its feature).

    Args:
        found: The features.
        rows: The rows, which give the vocabulary.
    """
    written = rows.vocabulary.numbers
    numbers = len(written) >= 3
    for feature in found:
        if feature.kind == "number":
            if numbers:
                least = min(written, key=lambda code: abs(written[code]))
                first = Literal_(rows.vocabulary.texts[least])
                for shift in (-written[least], -1 - written[least]):
                    number = _add_constant(feature.expression, shift)
                    yield Operation("+", first, number), feature
            continue
        yield feature.expression, feature
        if numbers:
            for operator in ("+", "-"):
                shifted = Operation(operator, feature.expression, Constant(1))
                yield shifted, feature
    for text in rows.vocabulary.texts:
        yield syntax.Literal_(text), None
