"""Everything that a head is tried as, in one list, the simplest first."""

from __future__ import annotations

from probes.decompile.composed import by_fetched
from probes.decompile.primitives import (
    Primitive,
    by_newness,
    by_order,
    by_position,
    by_predecessor,
    by_token,
    everywhere,
)
from probes.decompile.rows import Rows
from probes.decompile.separators import by_parts, by_runs

__all__ = ["primitives"]


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
