"""What heads may do in rows of several parts: before and after a separator, as far from one place
as from another, and on runs of equal tokens.

    "…before <sep>"        positions at which <sep> has not been seen
    counterpart            the position as far from the start as this one is from <sep>
    mirror                 the position as far before <sep> as this one is after it
    the last other token   where a run of equal tokens ends; how long ago is the length of a run

A separator is a token that does not vary (:meth:`probes.decompile.rows.Rows.content`) and stands
neither first nor last.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from interp.program import syntax
from interp.program.syntax import (
    And,
    Arithmetic,
    Assignment,
    Comparison,
    Constant,
    CountWhere,
    Expression,
    Key,
    Literal_,
    Name,
    Not,
    Position,
    Token,
)
from probes.decompile.primitives import Primitive
from probes.decompile.rows import Rows

__all__ = ["after", "by_parts", "by_runs", "separators"]

_OFTEN = 0.5


def separators(rows: Rows) -> list[str]:
    """Texts of the tokens that cut most rows in two."""
    content, found = rows.content(), []
    for code in np.unique(rows.tokens[rows.tokens >= 0]).tolist():
        here = rows.tokens[:, 1:] == code
        inside = here & (np.arange(1, rows.tokens.shape[1]) < rows.lengths[:, None] - 1)
        if code not in content and inside.any(1).mean() > _OFTEN:
            found.append(rows.vocabulary.texts[code])
    return found


def after(text: str) -> Assignment:
    """The line that says whether a token has been seen."""
    seen = Comparison(">=", CountWhere(Comparison("==", Key("token"), Literal_(text))), Constant(1))
    return Assignment(f"after_{_word(text)}", seen)


def _word(text: str) -> str:
    return "".join(c for c in text if c.isalnum()) or "it"


def by_parts(rows: Rows) -> Iterator[Primitive]:
    """What knows of a separator."""
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
        here: Expression = Arithmetic("-", Position(), Name(at.name))
        for shift, words in ((0, "counterpart"), (1, "next counterpart")):
            where = _at(Arithmetic("+", here, Constant(shift)) if shift else here)
            yield Primitive(f"{words} of {word}", where, "last", cost=4, lines=(at,))
        twice = Arithmetic("*", Constant(2), Name(at.name))
        mirror: Expression = Arithmetic("-", twice, Position())
        for shift, words in ((0, "mirror"), (1, "next mirror")):
            where = _at(Arithmetic("-", mirror, Constant(shift)) if shift else mirror)
            yield Primitive(f"{words} of {word}", where, "last", cost=4, lines=(at,))


def _at(place: Expression) -> Expression:
    return Comparison("==", Key("position"), place)


def by_runs() -> Iterator[Primitive]:
    """The position before a run of equal tokens."""
    yield Primitive("the last other token", Comparison("!=", Key("token"), Token()), "last", cost=3)
