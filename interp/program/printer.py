"""Print programs as text that the parser reads back to the same tree, with as few brackets as
possible.

    level   0 if else    1 ||    2 &&    3 == != < > <= >= in    4 + -    5 * %    6 ! # #[p] #> -
            7 names, calls

An operand is bracketed if it binds more loosely than its place requires. Programs that count and
programs that decide bind ``if else`` and ``!`` differently, so operands with these are bracketed
wherever one of the two languages would read something else. Comments and brackets of a file are not
in the tree: printing what was parsed keeps the meaning, not the layout.
"""

from __future__ import annotations

from interp.program import syntax
from interp.program.syntax import Expression, Program

_CHOICE, _OR, _AND, _COMPARISON, _SUM, _PRODUCT, _PREFIX, _ATOM = range(8)


def program_text(program: Program) -> str:
    """Return the program as text, one statement per line, as in its file."""
    lines = [f"#import {predicate.name}" for predicate in program.imports]
    lines += [f"{line.name} = {expression_text(line.expression)}" for line in program.lines]
    return "\n".join([*lines, *map(output_text, program.outputs)]) + "\n"


def output_text(output: syntax.Output) -> str:
    """Return the source text of an output line, such as ``allow "a" if condition``."""
    if isinstance(output, syntax.Allow):
        return f'allow "{output.token}" if {expression_text(output.condition)}'
    if isinstance(output, syntax.Next):
        return f"next = {expression_text(output.value)}"
    return f'score "{output.token}" = {expression_text(output.value)}'


def expression_text(expression: Expression) -> str:
    """Return the source text of an expression, in the syntax of the program language."""
    return _text_and_level(expression)[0]


def _text_and_level(part: Expression) -> tuple[str, int]:
    """Return an expression's text, and the level at which its operator binds."""
    match part:
        case syntax.Token() | syntax.Position():
            return type(part).__name__.lower(), _ATOM
        case syntax.Nothing():
            return "none", _ATOM
        case syntax.Truth(value):
            return ("true" if value else "false"), _ATOM
        case syntax.Symbol(text) | syntax.Literal_(text):
            return f'"{text}"', _ATOM
        case syntax.Name(name) | syntax.Holds(name):
            return name, _ATOM
        case syntax.Key(name):
            return f"key.{name}", _ATOM
        case syntax.Constant(value):
            return str(value), _ATOM if value >= 0 else _PREFIX
        case syntax.Smaller(left, right) | syntax.Larger(left, right):
            word = "min" if isinstance(part, syntax.Smaller) else "max"
            return f"{word}({expression_text(left)}, {expression_text(right)})", _ATOM
        case syntax.CountWhere(where):
            return f"count({expression_text(where)})", _ATOM
        case syntax.Average(value, where):
            return f"average({expression_text(value)} where {expression_text(where)})", _ATOM
        case syntax.Pick(which, value, where):
            return f"{which}({expression_text(value)} where {expression_text(where)})", _ATOM
        case syntax.Table():
            return _table(part), _ATOM
    return _operator(part)


def _operator(part: Expression) -> tuple[str, int]:
    match part:
        case syntax.Choice(then, condition, other):
            text = f"{_at(then, _OR)} if {_at(condition, _OR)} else {_at(other, _CHOICE)}"
            return text, _CHOICE
        case syntax.Or(left, right):
            return f"{_at(left, _OR)} || {_at(right, _AND)}", _OR
        case syntax.And(left, right):
            return f"{_at(left, _AND)} && {_at(right, _COMPARISON)}", _AND
        case syntax.Not(of):
            return f"!{_prefix_operand(of)}", _COMPARISON
        case syntax.Count(of, guard, future):
            sign = "#>" if future else "#" if guard is None else f"#[{guard}]"
            return f"{sign} {_prefix_operand(of)}", _PREFIX
        case syntax.Comparison(relation, left, right):
            return f"{_at(left, _SUM)} {relation} {_at(right, _SUM)}", _COMPARISON
        case syntax.In(value, tokens):
            listed = ", ".join(f'"{token}"' for token in tokens)
            return f"{_at(value, _SUM)} in {{{listed}}}", _COMPARISON
        case syntax.Operation(operator, left, right):
            level = _SUM if operator in "+-" else _PRODUCT
            return f"{_at(left, level)} {operator} {_at(right, level + 1)}", level
    raise TypeError(f"{type(part).__name__} is no part of the language")


def _table(table: syntax.Table) -> str:
    arguments = ", ".join(map(expression_text, table.arguments))
    entries = [
        " ".join(f'"{text}"' for text in texts) + f": {expression_text(value)}"
        for texts, value in table.entries
    ]
    return (
        f"table({arguments}) {{{', '.join([*entries, f'else: {expression_text(table.default)}'])}}}"
    )


def _prefix_operand(part: Expression) -> str:
    """Return the text of an operand of ``!`` or ``#``; a ``!`` there needs no brackets."""
    return _at(part, _COMPARISON if isinstance(part, syntax.Not) else _PREFIX)


def _at(part: Expression, least: int) -> str:
    text, level = _text_and_level(part)
    return text if level >= least else f"({text})"
