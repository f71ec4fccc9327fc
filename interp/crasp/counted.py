"""Give every formula that a program counts a line of its own.

    E3 = (# (a && E2)) >= 1        becomes        E3_counted = a && E2
                                                  E3 = (# E3_counted) >= 1

The program says the same. What it counts is then a latent like the others: a model may hold it
without holding the formulas that it is made of.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from interp.crasp.syntax import Count, Expression, Formula, FormulaName, Program, Symbol

__all__ = ["counted_as_lines"]


def counted_as_lines(program: Program) -> Program:
    """The same program with every counted formula named, unless it is a name or symbol already.

    New lines are called ``NAME_counted`` (``NAME_counted2`` … where a line counts more than once),
    after the line that counts them, and stand before it.
    """
    lines = []
    for line in program.lines:
        found: list[Any] = []
        expression = _named(line.expression, line.name, found, type(line))
        lines += [*found, replace(line, expression=expression)]
    return replace(program, lines=tuple(lines))


def _named(part: Expression, name: str, found: list[Any], kind: Any) -> Any:
    """The expression with counted formulas replaced by names; their lines are appended to
    ``found``."""
    changed = {
        field.name: _named(inside, name, found, kind)
        for field in fields(part)
        if isinstance(inside := getattr(part, field.name), Expression)
    }
    part = replace(part, **changed)
    if not isinstance(part, Count) or isinstance(part.of, FormulaName | Symbol):
        return part
    new = f"{name}_counted{len(found) + 1 if found else ''}"
    formula: Formula = part.of
    found.append(kind(new, formula))
    return replace(part, of=FormulaName(new))
