"""What a head may do with what an earlier layer fetched: compare tokens with it, not with the token
that stands here.

    equal to x             count(key.token == x): how often a fetched token occurs
    follows x              last(key.token where key.before == x)
    next to x in order     the greatest token below x, the least above it

x is the token before, the greatest or the least token, or a counterpart in another part of the row.
Two attentions deep, so these are for models with two layers that need a head.

Everything that a head is tried as, in one list, the simplest first.
"""

from __future__ import annotations

from collections.abc import Iterator

from interp.program import syntax
from interp.program.syntax import Assignment, Comparison, Key, Name
from probes.decompile.primitives import (
    BEFORE,
    Primitive,
    by_newness,
    by_order,
    by_position,
    by_predecessor,
    by_token,
    everywhere,
    lag,
)
from probes.decompile.rows import Rows
from probes.decompile.separators import by_parts, by_runs

__all__ = ["primitives"]


def by_fetched(rows: Rows) -> Iterator[Primitive]:
    """Everything that compares tokens with one that was fetched."""
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
    """Whether the token here plays no part."""
    return syntax.Token() not in syntax.children(primitive.where, deep=True)


def primitives(rows: Rows, *, deep: bool = False, positions: bool = True) -> list[Primitive]:
    """Everything a head is tried as, the simplest first.

    Args:
        rows: Whose tokens are spoken of.
        deep: Also what needs an earlier layer to have fetched or counted something.
        positions: Also what needs to know positions; a model without any cannot.
    """
    found = [*everywhere(), *by_token(rows, positions), *by_order(rows)]
    if positions:
        found += [*by_position(), *by_runs(), *by_parts(rows)]
        found += by_predecessor() if deep else []
    found += [*by_newness(rows), *by_fetched(rows)] if deep else []
    return sorted(found, key=lambda one: one.cost)
