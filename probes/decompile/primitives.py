"""What a head may do, in expressions of the program language: the attention patterns that are tried
in place of its own.

    even over all          every position counts alike: the head's output is an average, a count
    by position            the position k before, the last k, the first, a fixed one, every p-th one
    by token               equal tokens; a certain token; the last token that is not a certain one
    by order               the least token above the current one, the greatest, …
    by what was written    positions whose predecessor equals the current token (after a head that
                           fetched predecessors)

Each is a condition on the earlier position, with a rule that picks one position if several satisfy
it. Its ideal pattern is even over the positions that are left, or all on the first position if
there are none. Simpler primitives are tried first and kept if they do as well.

*In rows of several parts*: before and after a separator, at the same distance from one place as
from another, and on runs of equal tokens.

    "…before <sep>"        positions at which <sep> has not been seen
    counterpart            the position as far from the start as this one is from <sep>
    mirror                 the position as far before <sep> as this one is after it
    the last other token   where a run of equal tokens ends; how long ago is the length of a run

A separator is a token that does not vary (:meth:`probes.decompile.rows.TokenRows.content`) and
stands neither first nor last.

*With what an earlier layer fetched*: tokens are compared with a fetched token x instead of the
current one.

    equal to x             count(key.token == x): how often a fetched token occurs
    follows x              last(key.token where key.before == x)
    next to x in order     the greatest token below x, the least above it

x is the previous token, the greatest or the least token, or a counterpart in another part of the
row. This takes two attention layers, so these are for models with two layers that have a needed
head.

:func:`primitives` returns all of them in one list, the simplest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from interp.program import syntax
from interp.program.evaluation import keys
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
    Operation,
    Position,
    Token,
    Truth,
    Which,
)
from probes.decompile.rows import TokenRows

_SMALL = 8
"""Number of varying tokens, the most frequent ones, that conditions may name one by one. It bounds
the number of primitives that are tried."""
_LAGS, _FIXED, _WINDOWS = 4, 3, (2, 3, 4)
_SMALL_WORDS = {"the", "that", "is", "one", "like", "this", "of", "a"}
_PERIODS = {2: "2nd", 3: "3rd", 4: "4th"}


@dataclass(frozen=True)
class Primitive:
    """One attention pattern that a head may have.

    Attributes:
        words: What the primitive attends to, in words.
        where: The condition on the earlier positions that it attends to.
        which: How one of them is picked; None if all count alike.
        cost: How complex it is; simpler primitives cost less.
        lines: The lines of a program that the condition needs.
        family: Counts of one family may be subtracted from each other; empty for a family of its
            own.
    """

    words: str
    where: Expression
    which: Which | None = None
    cost: int = 1
    lines: tuple[Assignment, ...] = ()
    family: str = ""

    @property
    def single(self) -> bool:
        """Whether one position is attended to."""
        return self.which is not None or one_position(self.where)

    @property
    def name(self) -> str:
        """The name of a line that holds what the primitive fetches."""
        words = "".join(c if c.isalnum() else " " for c in self.words.lower()).split()
        short = [w for w in words if w not in _SMALL_WORDS]
        return "_".join(short[:4]) or "picked"


def lag(k: int) -> Primitive:
    """Return the primitive that attends to the position k before the query."""
    where = Comparison("==", Key("position"), Operation("-", Position(), Constant(k)))
    words = "the token before" if k == 1 else f"the token {k} before"
    return Primitive(words, where, cost=k)


def one_position(where: Expression) -> bool:
    """Return whether a condition on keys fixes one position, in the form ``key.position == …``."""
    if not isinstance(where, Comparison):
        return False
    return where.relation == "==" and where.left == Key("position")


BEFORE = Assignment("before", syntax.Pick("last", Key("token"), lag(1).where))
"""Line of a program that gives the name ``before`` to the token one position back."""


def everywhere() -> Iterator[Primitive]:
    """Yield the primitives that attend to all positions, to the first, or to all but the first."""
    yield Primitive("all positions alike", Truth(True), cost=0)
    first = Comparison("==", Key("position"), Constant(0))
    yield Primitive("the first position", first)
    yield Primitive("all but the first", Comparison("!=", Key("position"), Constant(0)))


def by_position() -> Iterator[Primitive]:
    """Yield primitives that attend by position alone."""
    yield Primitive("itself", Comparison("==", Key("position"), Position()))
    yield from (lag(k) for k in range(1, _LAGS + 1))
    for p in range(1, _FIXED + 1):
        where = Comparison("==", Key("position"), Constant(p))
        yield Primitive(f"position {p}", where, cost=2)
    for k in _WINDOWS:
        near = Comparison(">", Key("position"), Operation("-", Position(), Constant(k)))
        yield Primitive(f"the last {k} positions", near, cost=3)
    for p, nth in _PERIODS.items():
        for shift in range(p):
            here = Operation("+", Position(), Constant(shift)) if shift else Position()
            where = Comparison("==", _mod(Key("position"), p), _mod(here, p))
            words = (
                f"every {nth} position, {shift} from here"
                if shift
                else f"every {nth} position back"
            )
            yield Primitive(words, where, cost=3)
            if not shift:
                strict = And(where, Comparison("<", Key("position"), Position()))
                yield Primitive(f"every {nth} position before", strict, cost=4)


def _mod(of: Expression, p: int) -> Expression:
    return Operation("%", of, Constant(p))


def by_token(rows: TokenRows, positions: bool) -> Iterator[Primitive]:
    """Yield primitives that attend to keys with the query's token, or with one named token.

    Args:
        rows: The rows, from which the tokens that may be named are taken.
        positions: Whether the model knows positions; only then are there primitives for
            earlier keys alone, or for the first or last such key.
    """
    same = Comparison("==", Key("token"), Token())
    earlier = And(same, Comparison("<", Key("position"), Position()))
    yield Primitive("equal tokens", same, cost=2)
    if positions:
        yield Primitive("earlier equal tokens", earlier, cost=2)
        yield Primitive("the first equal token", same, "first", cost=3)
        yield Primitive("the last equal token before", earlier, "last", cost=3)
    for code in _nameable(rows):
        text = rows.vocabulary.texts[code]
        is_it = Comparison("==", Key("token"), Literal_(text))
        yield Primitive(f'every "{text}"', is_it, cost=2)
        if not positions:
            continue
        yield Primitive(f'the last "{text}"', is_it, "last", cost=3)
        other = Comparison("!=", Key("token"), Literal_(text))
        yield Primitive(f'the last that is not "{text}"', other, "last", cost=3)


def _nameable(rows: TokenRows) -> list[int]:
    """Return the tokens that conditions may name.

    These are the tokens that do not vary between rows, and of the varying ones all of a small
    vocabulary, or the eight most frequent in at least half of the rows.
    """
    return _constant_tokens(rows) + rows.common(_SMALL).tolist()


def _constant_tokens(rows: TokenRows) -> list[int]:
    """Return the tokens that do not vary between rows."""
    present, content = np.unique(rows.tokens[rows.read]), rows.content()
    return [int(code) for code in present if code not in content]


def by_order(rows: TokenRows) -> Iterator[Primitive]:
    """Yield primitives that attend by the order of tokens, such as to the greatest token.

    Nothing if fewer than three of the tokens that vary in these rows stand for numbers.
    """
    numbers = rows.vocabulary.numbers
    if sum(int(code) in numbers for code in rows.content()) < 3:
        return
    texts = tuple(rows.vocabulary.texts[c] for c in _nameable(rows) if c not in numbers)
    above, below = (Comparison(r, Key("token"), Token()) for r in (">", "<"))
    number = syntax.Not(In(Key("token"), texts)) if texts else Truth(True)
    yield Primitive("the least token above this one", above, "least", cost=3)
    yield Primitive("the greatest token below this one", below, "greatest", cost=3)
    yield Primitive("the last token above this one", above, "last", cost=3)
    yield Primitive("the last token below this one", below, "last", cost=3)
    yield Primitive("the greatest token", number, "greatest", cost=3)
    yield Primitive("the least token", number, "least", cost=3)


def by_predecessor() -> Iterator[Primitive]:
    """Yield primitives of induction: they attend to keys whose preceding token is the query's
    token.

    One also asks that the token before that one equals the token before the query. In a model, an
    earlier layer must have brought the preceding tokens to the keys.
    """
    follows = Comparison("==", Key("before"), Token())
    lines = (BEFORE,)
    yield Primitive("tokens that follow one like this", follows, cost=3, lines=lines)
    yield Primitive("the first that follows one like this", follows, "first", 3, lines)
    yield Primitive("the last that follows one like this", follows, "last", 3, lines)
    pair = And(
        Comparison("==", Key("before"), Token()),
        Comparison("==", Key("before2"), Name("before")),
    )
    two = Assignment("before2", syntax.Pick("last", Key("token"), lag(2).where))
    words = "the last that follows two like this and the one before"
    yield Primitive(words, pair, "last", 4, (BEFORE, two))


_FIRST_EQUAL = syntax.Pick("first", Key("position"), Comparison("==", Key("token"), Token()))


def by_newness(rows: TokenRows) -> Iterator[Primitive]:
    """Yield primitives that attend to tokens at their first occurrence in a row.

    In a model, an earlier layer must have counted the equal tokens at each position.
    """
    texts = tuple(rows.vocabulary.texts[c] for c in _constant_tokens(rows))
    once = Comparison("==", syntax.CountWhere(Comparison("==", Key("token"), Token())), Constant(1))
    new = And(once, syntax.Not(In(Token(), texts))) if texts else once
    line, met = Assignment("new", new), Assignment("met", _FIRST_EQUAL)
    yield Primitive("new tokens", Key("new"), cost=4, lines=(line,))
    later = And(Key("new"), Comparison(">", Key("position"), Name("met")))
    words = "the next new token after the first one like this"
    yield Primitive(words, later, "first", 5, (line, met))


def ideal(primitive: Primitive, rows: TokenRows) -> Float[np.ndarray, "row query key"]:
    """Return the attention pattern of a head that does exactly what a primitive says."""
    chosen = keys(primitive.lines, primitive.where, rows.tokens, rows.vocabulary)
    weights = chosen.astype(np.float64)
    if primitive.which is not None:
        weights = _pick_weights(primitive.which, chosen, rows)
    empty = ~chosen.any(-1)
    weights[..., 0] = np.where(empty, 1.0, weights[..., 0])
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def _pick_weights(which: Which, chosen: NDArray[np.bool_], rows: TokenRows) -> NDArray[np.float64]:
    n = chosen.shape[-1]
    rank = np.broadcast_to(np.arange(n), chosen.shape)
    if which in ("least", "greatest"):
        order = np.where(rows.tokens >= 0, rows.vocabulary.order[rows.tokens], -1)
        rank = np.broadcast_to(order[:, None, :], chosen.shape)
    low = which in ("first", "least")
    found = np.where(chosen, rank, 2**40 if low else -(2**40))
    place = found.argmin(-1) if low else found.argmax(-1)
    weights: NDArray[np.float64] = (np.arange(n) == place[..., None]).astype(np.float64)
    return weights * chosen.any(-1, keepdims=True)


_OFTEN = 0.5


def separators(rows: TokenRows) -> list[str]:
    """Return the texts of the tokens that split most rows in two."""
    content, found = rows.content(), []
    for code in np.unique(rows.tokens[rows.tokens >= 0]).tolist():
        here = rows.tokens[:, 1:] == code
        inside = here & (np.arange(1, rows.tokens.shape[1]) < rows.lengths[:, None] - 1)
        if code not in content and inside.any(1).mean() > _OFTEN:
            found.append(rows.vocabulary.texts[code])
    return found


def after(text: str) -> Assignment:
    """Return the line that says whether a certain token has occurred."""
    seen = Comparison(">=", CountWhere(Comparison("==", Key("token"), Literal_(text))), Constant(1))
    return Assignment(f"after_{_word(text)}", seen)


def _word(text: str) -> str:
    return "".join(c for c in text if c.isalnum()) or "it"


def by_parts(rows: TokenRows) -> Iterator[Primitive]:
    """Yield primitives that attend relative to a separator, a token that cuts most rows in two.

    They attend to the keys before or after it, all or those with the query's token, or to the
    position that corresponds to the query's in the other part, in the same order or mirrored.
    """
    same = Comparison("==", Key("token"), Token())
    for text in separators(rows):
        seen = after(text)
        later: Expression = Key(seen.name)
        earlier = Not(later)
        word = _word(text)
        yield Primitive(f"tokens before {word}", earlier, cost=3, lines=(seen,))
        yield Primitive(f"tokens after {word}", later, cost=3, lines=(seen,))
        yield Primitive(f"equal before {word}", And(same, earlier), None, 4, (seen,), "equal")
        yield Primitive(f"equal after {word}", And(same, later), None, 4, (seen,), "equal")
        place = syntax.Pick("last", Key("position"), Comparison("==", Key("token"), Literal_(text)))
        at = Assignment(f"{word}_at", place)
        here: Expression = Operation("-", Position(), Name(at.name))
        for shift, words in ((0, "counterpart"), (1, "next counterpart")):
            where = _at(Operation("+", here, Constant(shift)) if shift else here)
            yield Primitive(f"{words} of {word}", where, "last", cost=4, lines=(at,))
        twice = Operation("*", Constant(2), Name(at.name))
        mirror: Expression = Operation("-", twice, Position())
        for shift, words in ((0, "mirror"), (1, "next mirror")):
            where = _at(Operation("-", mirror, Constant(shift)) if shift else mirror)
            yield Primitive(f"{words} of {word}", where, "last", cost=4, lines=(at,))


def _at(place: Expression) -> Expression:
    return Comparison("==", Key("position"), place)


def by_runs() -> Iterator[Primitive]:
    """Yield the primitive that attends to the last position before a run of equal tokens."""
    yield Primitive("the last other token", Comparison("!=", Key("token"), Token()), "last", cost=3)


def by_fetched(rows: TokenRows) -> Iterator[Primitive]:
    """Yield primitives that compare tokens with one that an earlier layer fetched."""
    extremes = [p for p in by_order(rows) if p.which in ("greatest", "least") and _whole(p)]
    places = [p for p in by_parts(rows) if p.which == "last"]
    for base in (lag(1), *extremes, *places):
        line = BEFORE
        if base.where != lag(1).where:
            line = Assignment(
                base.name, syntax.Pick(base.which or "last", Key("token"), base.where)
            )
        lines, x = (*base.lines, line), Name(line.name)
        cost = base.cost + 2
        yield Primitive(f"equal to {x.name}", Comparison("==", Key("token"), x), None, cost, lines)
        if base in extremes:
            below, above = (Comparison(r, Key("token"), x) for r in ("<", ">"))
            yield Primitive(f"greatest below {x.name}", below, "greatest", cost, lines)
            yield Primitive(f"least above {x.name}", above, "least", cost, lines)
        elif line != BEFORE:
            follows = Comparison("==", Key("before"), x)
            yield Primitive(f"last after {x.name}", follows, "last", cost, (BEFORE, *lines))


def _whole(primitive: Primitive) -> bool:
    """Return whether a primitive does not depend on the current token."""
    return syntax.Token() not in syntax.children(primitive.where, deep=True)


def primitives(rows: TokenRows, *, deep: bool = False, positions: bool = True) -> list[Primitive]:
    """Return all primitives that are tried for a head, the simplest first.

    Args:
        rows: The rows, whose tokens the primitives are about.
        deep: Whether to include those for which an earlier layer must have fetched or counted
            something.
        positions: Whether to include those that need position information.
    """
    found = [*everywhere(), *by_token(rows, positions), *by_order(rows)]
    if positions:
        found += [*by_position(), *by_runs(), *by_parts(rows)]
        found += by_predecessor() if deep else []
    found += [*by_newness(rows), *by_fetched(rows)] if deep else []
    return sorted(found, key=lambda one: one.cost)
