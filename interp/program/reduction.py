"""Reduce a program to a smaller one that accepts the same strings, of every length.

A part of the program is replaced by true, false, 0, 1 or a part of itself of the same kind, and
lines that are no longer used are removed. Each such cut is kept only if it is proved that the
language stays the same (:mod:`interp.program.equivalence`). The largest cut is tried first, until
no cut is left.

So no single cut makes the result smaller; a program of another shape may still be smaller. Cuts
whose equivalence cannot be decided are not made. A program none of whose cuts can be decided is
returned unchanged: that is no proof that it is the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from interp.errors import ArgumentError
from interp.program.analysis import used_names
from interp.program.equivalence import letters_asked, shortest_difference
from interp.program.syntax import (
    Assignment,
    Constant,
    Expression,
    Kind,
    Output,
    Program,
    Truth,
    children,
    kind_of,
    replace_part,
    value_of,
    with_value,
)

_CONSTANTS: dict[Kind, tuple[Expression, ...]] = {
    "boolean": (Truth(True), Truth(False)),
    "number": (Constant(0), Constant(1)),
    "token": (),
}


def smallest(program: Program, *, letters: Sequence[str] | None = None, yes: str = "1") -> Program:
    """Return the smallest program found that accepts the same strings, by cutting parts of one.

    Args:
        program: A program that :func:`~interp.program.equivalence.shortest_difference` can handle.
        letters: Tokens of the strings; by default those that the program's answer depends on.
        yes: The token that a program that decides outputs if it accepts.

    Raises:
        ArgumentError: if nothing can be decided about the program.
    """
    spelt = letters_asked(program, yes=yes) if letters is None else tuple(letters)
    shortest_difference(program, program, letters=spelt, yes=yes)  # refused before any work
    program = _drop_unused(program.lines, program.outputs, program)
    while True:
        for smaller in sorted(_cut(program), key=lambda cut: cut.nodes):
            with suppress(ArgumentError):  # a cut about which nothing can be decided
                if shortest_difference(program, smaller, letters=spelt, yes=yes) is None:
                    program = smaller
                    break
        else:
            return program


def _cut(program: Program) -> set[Program]:
    """Return all smaller programs that one cut makes."""
    known: dict[str, Kind] = {"token": "token", "position": "number"}
    found = set()
    lines, outputs = program.lines, program.outputs
    for at, line in enumerate(lines):
        for new in _less(line.expression, known):
            with suppress(ArgumentError):  # a part that means nothing where it was put
                changed = (*lines[:at], Assignment(line.name, new), *lines[at + 1 :])
                found.add(_drop_unused(changed, outputs, program))
        known[line.name] = kind_of(line.expression, known)
    for at, output in enumerate(outputs):
        for new in _less(value_of(output), known):
            with suppress(ArgumentError):
                changed_outputs = (*outputs[:at], with_value(output, new), *outputs[at + 1 :])
                found.add(_drop_unused(lines, changed_outputs, program))
    return {cut for cut in found if cut.nodes < program.nodes}


def _less(whole: Expression, known: dict[str, Kind]) -> Iterator[Expression]:
    """Yield the expression with one of its parts replaced by a constant, or by a smaller expression
    of the same kind that is inside of that part."""
    for old in set(children(whole, deep=True)):
        kind = kind_of(old, known)
        inside = [p for p in children(old, deep=True) if p != old and kind_of(p, known) == kind]
        for new in (*_CONSTANTS[kind], *dict.fromkeys(inside)):
            if new != old:
                yield replace_part(whole, old, new)


def _drop_unused(lines: Sequence[Assignment], outputs: tuple[Output, ...], old: Program) -> Program:
    """Return the program with only the lines that its answer depends on."""
    program = replace(old, lines=tuple(lines), outputs=outputs)
    used = used_names(program)
    return replace(program, lines=tuple(line for line in lines if line.name in used))
