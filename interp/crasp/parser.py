"""Parse a program's text into a typed syntax tree, finding every mistake with line and column.

The text form (``.cr``) has one statement a line: ``name = expression`` or ``#import predicate``;
``//`` begins a comment. :mod:`interp.crasp.grammar` has the precedence. A name is given once and
before it is used; whether it is a formula or a number follows from its line. Imports may stand
anywhere. That a text parses says nothing about what it accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lark import Token, Tree

from interp.crasp.grammar import parse_line
from interp.crasp.mistakes import Mistake, ProgramError
from interp.crasp.predicates import BUILT_IN, Predicate, built_in
from interp.crasp.resolution import Scope, resolve
from interp.crasp.syntax import Assignment, Program
from interp.reading import read_text

__all__ = ["parse_program", "read_program"]

_MOST_BYTES = 1 << 20

_NAMED = re.compile(r"[ \t]*([A-Za-z_][A-Za-z_0-9]*)[ \t]*=")


def read_program(path: Path, predicates: Iterable[Predicate] = ()) -> Program:
    """Read the program of a ``.cr`` file (UTF-8).

    Raises:
        ArgumentError: if the file cannot be read as text.
        ProgramError: for mistakes, as :func:`parse_program`.
    """
    text = read_text(path, most=_MOST_BYTES)
    return parse_program(text, predicates, name=str(path))


def parse_program(
    text: str, predicates: Iterable[Predicate] = (), *, name: str = "program"
) -> Program:
    """Parse a program's text.

    Args:
        text: The statements, one per line.
        predicates: Predicates that ``#import`` may name besides the built-in ones.
        name: The name of the text in messages.

    Raises:
        ProgramError: naming every mistake.
    """
    sources = re.split(r"\r\n|\r|\n", text)
    parsed = {number: parse_line(source, number) for number, source in enumerate(sources, 1)}
    mistakes = [line for line in parsed.values() if isinstance(line, Mistake)]
    trees = {number: line for number, line in parsed.items() if isinstance(line, Tree)}
    if not mistakes and not any(tree.data == "assigned" for tree in trees.values()):
        mistakes.append(Mistake(1, 1, "there is no line NAME = EXPRESSION", sources[0]))
    imports, wrong = _imports(trees, {p.name: p for p in predicates}, sources)
    lines, mistyped = _lines(trees, imports, sources, {mistake.line for mistake in mistakes})
    mistakes += wrong + mistyped
    if mistakes:
        raise ProgramError(name, mistakes)
    return Program(tuple(lines), tuple(p for p in imports.values() if p is not None))


def _imports(
    trees: Mapping[int, Tree[Token]], known: Mapping[str, Predicate], sources: list[str]
) -> tuple[dict[str, Predicate | None], list[Mistake]]:
    """Predicate name → predicate; None for one that does not exist, which is reported once,
    here."""
    found: dict[str, Predicate | None] = {}
    mistakes = []
    for number, tree in trees.items():
        if tree.data != "imported":
            continue
        token = _first_name(tree)
        found[str(token)] = known.get(str(token)) or built_in(str(token))
        if found[str(token)] is None:
            message = f"there is no predicate {token}: there are {', '.join([*known, BUILT_IN])}"
            source = sources[number - 1]
            mistakes.append(Mistake(number, int(token.column or 1), message, source, len(token)))
    return found, mistakes


def _lines(
    trees: Mapping[int, Tree[Token]],
    imports: dict[str, Predicate | None],
    sources: list[str],
    broken: set[int],
) -> tuple[list[Assignment], list[Mistake]]:
    """The typed lines. A name whose line is wrong is known, but has no type."""
    assigned = {number: tree for number, tree in trees.items() if tree.data == "assigned"}
    given = {number: str(_first_name(tree)) for number, tree in assigned.items()}
    given |= {n: found[1] for n in broken if (found := _NAMED.match(sources[n - 1]))}
    scope = Scope(imports=imports, given=given)
    lines, mistakes = [], []
    for number in sorted(given):
        name, source = given[number], sources[number - 1]
        if clash := _clash(name, number, scope):
            column = len(source) - len(source.lstrip(" \t")) + 1
            mistakes.append(Mistake(number, column, clash, source, len(name)))
        expression = None
        if number in assigned:
            body = assigned[number].children[-1]
            expression, wrong = resolve(body, scope, number, source)
            mistakes += wrong
        scope.values.setdefault(name, expression)
        if expression is not None:
            lines.append(Assignment(name, expression))
    return lines, mistakes


def _clash(name: str, number: int, scope: Scope) -> str | None:
    first = min(line for line, given in scope.given.items() if given == name)
    if first < number:
        return f"{name} is already given on line {first}: choose another name"
    if name in scope.imports:
        return f"{name} is an imported predicate: choose another name"
    return None


def _first_name(tree: Tree[Token]) -> Token:
    return next(t for t in tree.children if isinstance(t, Token) and t.type == "NAME")
