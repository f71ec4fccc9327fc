"""Which head a line of a program stands for, where the search did not begin with that head.

A line that looks back has a pattern: the positions that it picks or counts. Of the heads that the
model needs the one is named whose attention shares most with it, and what is left of the model's
decisions with the line's pattern in that head's place is measured. That is a comparison made
afterwards: a small gain says that no single head does what the line says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from interp.program import syntax
from interp.program.syntax import Expression, Program, children
from probes.decompile.components import HeadDoes, Kept, overlap, substituted
from probes.decompile.decisions import TokenTable, decided, outputs_of
from probes.decompile.primitives import Primitive
from probes.decompile.rows import Rows

__all__ = ["line_heads"]


def line_heads(
    model: Any, rows: Rows, table: TokenTable, kept: Kept, program: Program, known: set[str]
) -> Iterator[tuple[str, HeadDoes]]:
    """(name of a line, the head it stands for) for the lines that look back and are not known.

    Args:
        model: Hooked.
        rows: A few dozen.
        table: Fitted to the model's decisions.
        kept: Components that are needed.
        program: Whose lines are asked about.
        known: Names of lines that a head stands for already.
    """
    heads = [part for part in kept.parts if part.kind == "head"]
    if not heads:
        return
    truth = decided(outputs_of(model, rows), rows)
    for number, line in enumerate(program.lines):
        looked = _looks(line.expression)
        if line.name in known or looked is None:
            continue
        where, which = looked
        words = f"as the line {line.name} says"
        one = Primitive(words, where, which, lines=program.lines[:number])
        shared = {head: overlap(model, rows, head, one) for head in heads}
        head = max(heads, key=lambda h: shared[h])
        [found] = substituted(model, kept, [], head, rows, [one])
        gain = table.fidelity(rows, truth, found).or_match
        yield line.name, HeadDoes(head, one, gain, tried=((f"shares {shared[head]:.2f}", gain),))


def _looks(expression: Expression) -> tuple[Expression, syntax.Which | None] | None:
    """The first condition that a line looks back with, and how it picks."""
    for part in children(expression, deep=True):
        if isinstance(part, syntax.Pick):
            by_count = part.which in ("commonest", "rarest")
            return part.where, None if by_count else part.which
        if isinstance(part, syntax.CountWhere | syntax.Average):
            return part.where, None
    return None
