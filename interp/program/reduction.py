"""The smallest program found that accepts the same strings, of every length.

A part of a program is cut if the rest is the same language: put in its place is true, false, 0, 1
or a part of itself of the same kind, and lines that nothing names any more go. Every cut is proved
(:mod:`interp.program.equivalence`), the largest is tried first, and cuts go on until none is left.

So no single cut makes the result smaller; a program of another shape may still be smaller. Parts
whose equivalence is not decided are left as they are, and a program none of whose cuts is decided
comes back as it was: that is no proof that it is the smallest.
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
    """The smallest program found that accepts the same strings, by cutting parts of one.

    Args:
        program: A program about which
            :func:`~interp.program.equivalence.shortest_difference` can decide.
        letters: Tokens of the strings; by default those that the program asks for.
        yes: What a program that decides answers where it accepts.

    Raises:
        ArgumentError: where nothing can be decided about the program.
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
    """Programs with one part less."""
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
    """The expression with one of its parts replaced by a constant, or by a smaller expression of
    the same kind that stands inside of that part."""
    for old in set(children(whole, deep=True)):
        kind = kind_of(old, known)
        inside = [p for p in children(old, deep=True) if p != old and kind_of(p, known) == kind]
        for new in (*_CONSTANTS[kind], *dict.fromkeys(inside)):
            if new != old:
                yield replace_part(whole, old, new)


def _drop_unused(lines: Sequence[Assignment], outputs: tuple[Output, ...], old: Program) -> Program:
    """The program of the lines that its answer depends on."""
    program = replace(old, lines=tuple(lines), outputs=outputs)
    used = used_names(program)
    return replace(program, lines=tuple(line for line in lines if line.name in used))
