"""Static analysis of programs: depth, alphabet, unused names, direction of counts.

    depth(# φ) = depth(φ) + 1,   depth(name) = depth(its line),   otherwise the largest inside

The depth of the last line is the number of attention layers that the compiler needs (`depth` §3.2).
It is the depth of this text: another program for the same language may have a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

from interp.program.syntax import (
    Count,
    Expression,
    Formula,
    Holds,
    Key,
    Name,
    Program,
    Symbol,
    children,
    value_of,
)


@dataclass(frozen=True)
class Findings:
    """A summary of a program.

    Attributes:
        depth: The depth of the last line.
        past_only: Whether no count looks at the future; otherwise the program is two-sided.
        alphabet: The tokens that the program names, sorted.
        names: The name of each line → its depth, in order.
        warnings: Things that are probably mistakes, as sentences.
    """

    depth: int
    past_only: bool
    alphabet: tuple[str, ...]
    names: dict[str, int]
    warnings: tuple[str, ...]


def analyse(program: Program) -> Findings:
    """Return everything that this module can find out about a program."""
    levels = depths(program)
    return Findings(
        depth=depth(program),
        past_only=is_past_only(program),
        alphabet=alphabet(program),
        names=levels,
        warnings=tuple(_warnings(program, levels)),
    )


def depths(program: Program) -> dict[str, int]:
    """Return the depth of every line: how deep its counts nest, following names."""
    known: dict[str, int] = {}
    for line in program.lines:
        known[line.name] = _depth(line.expression, known)
    return known


def depth(program: Program) -> int:
    """Return the depth of the program: how deep counts nest in its last line."""
    return depths(program)[program.lines[-1].name]


def alphabet(program: Program) -> tuple[str, ...]:
    """Return the tokens that the program names, sorted; other tokens satisfy no symbol."""
    found = {part.token for part in program.parts() if isinstance(part, Symbol)}
    return tuple(sorted(found))


def is_past_only(program: Program) -> bool:
    """Return whether every count is over the positions up to and including the current one.

    False if a count is over the positions from the current one to the end (``#>``).
    """
    return not any(isinstance(part, Count) and part.future for part in program.parts())


def used_names(program: Program) -> frozenset[str]:
    """Return the name of the last line, if it is the answer, and all names that the answer depends
    on."""
    outputs = [part for output in program.outputs for part in children(value_of(output), deep=True)]
    used = {part.name for part in outputs if isinstance(part, Name | Key)}
    used |= set() if program.outputs else {program.lines[-1].name}
    for line in reversed(program.lines):
        if line.name in used:
            inside = children(line.expression, deep=True)
            used |= {part.name for part in inside if isinstance(part, Name | Key)}
    return frozenset(used)


def _depth(expression: Expression, known: dict[str, int]) -> int:
    if isinstance(expression, Name):
        return known[expression.name]
    inside = max((_depth(part, known) for part in children(expression)), default=0)
    return inside + isinstance(expression, Count)


def _warnings(program: Program, levels: dict[str, int]) -> list[str]:
    used, answer = used_names(program), program.lines[-1]
    warnings = []
    unused = [name for name in levels if name not in used]
    if unused:
        warnings.append(f"{', '.join(unused)}: not used by the last line {answer.name}")
    deeper = [name for name in unused if levels[name] > levels[answer.name]]
    if deeper:
        warnings.append(f"{', '.join(deeper)}: deeper than the last line, whose depth counts")
    parts = program.parts()
    asked = {part.predicate for part in parts if isinstance(part, Holds)}
    asked |= {part.guard for part in parts if isinstance(part, Count) and part.guard}
    idle = [predicate.name for predicate in program.imports if predicate.name not in asked]
    if idle:
        warnings.append(f"{', '.join(idle)}: imported and not used")
    spaced = [token for token in alphabet(program) if not token or token.split() != [token]]
    if spaced:
        told = ", ".join(f'"{token}"' for token in spaced)
        warnings.append(f"{told}: holds white space or nothing, so no token of a line equals it")
    if not isinstance(answer.expression, Formula):
        warnings.append(f"{answer.name}, the last line, is a number: it accepts nothing")
    return warnings
