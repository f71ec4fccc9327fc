"""Programs as text: what the parser reads back to the same tree, with as few brackets as it can.

    level   0 if else    1 ||    2 &&    3 == != < > <= >= in    4 + -    5 * %    6 ! # #[p] #> -
            7 names, calls

An operand is bracketed when it binds more loosely than its place asks for. Programs that count and
programs that decide bind ``if else`` and ``!`` differently, so operands with these are bracketed
wherever one of the two would read something else. Comments and brackets of a file are not in the
tree: printing what was parsed keeps the meaning, not the layout.
"""

from __future__ import annotations

from interp.program.syntax import (
    Allow,
    And,
    Arithmetic,
    Average,
    Choice,
    Comparison,
    Constant,
    Count,
    CountWhere,
    Expression,
    Holds,
    In,
    Key,
    Larger,
    Literal_,
    Name,
    Next,
    Not,
    Nothing,
    Or,
    Output,
    Pick,
    Position,
    Program,
    Smaller,
    Symbol,
    Table,
    Token,
    Truth,
)

__all__ = ["expression_text", "output_text", "program_text"]

_CHOICE, _OR, _AND, _COMPARISON, _SUM, _PRODUCT, _PREFIX, _ATOM = range(8)


def program_text(program: Program) -> str:
    """The program as text, one statement a line, as in its file."""
    lines = [f"#import {predicate.name}" for predicate in program.imports]
    lines += [f"{line.name} = {expression_text(line.expression)}" for line in program.lines]
    return "\n".join([*lines, *map(output_text, program.outputs)]) + "\n"


def output_text(output: Output) -> str:
    """One output line."""
    if isinstance(output, Allow):
        return f'allow "{output.token}" if {expression_text(output.condition)}'
    if isinstance(output, Next):
        return f"next = {expression_text(output.value)}"
    return f'score "{output.token}" = {expression_text(output.value)}'


def expression_text(expression: Expression) -> str:
    """One expression as text."""
    return _written(expression)[0]


def _written(part: Expression) -> tuple[str, int]:
    """An expression's text, and the level at which its operator binds."""
    match part:
        case Token() | Position():
            return type(part).__name__.lower(), _ATOM
        case Nothing():
            return "none", _ATOM
        case Truth(value):
            return ("true" if value else "false"), _ATOM
        case Symbol(text) | Literal_(text):
            return f'"{text}"', _ATOM
        case Name(name) | Holds(name):
            return name, _ATOM
        case Key(name):
            return f"key.{name}", _ATOM
        case Constant(value):
            return str(value), _ATOM if value >= 0 else _PREFIX
        case Smaller(left, right) | Larger(left, right):
            word = "min" if isinstance(part, Smaller) else "max"
            return f"{word}({expression_text(left)}, {expression_text(right)})", _ATOM
        case CountWhere(where):
            return f"count({expression_text(where)})", _ATOM
        case Average(value, where):
            return f"average({expression_text(value)} where {expression_text(where)})", _ATOM
        case Pick(which, value, where):
            return f"{which}({expression_text(value)} where {expression_text(where)})", _ATOM
        case Table():
            return _table(part), _ATOM
    return _operator(part)


def _operator(part: Expression) -> tuple[str, int]:
    match part:
        case Choice(then, condition, other):
            text = f"{_at(then, _OR)} if {_at(condition, _OR)} else {_at(other, _CHOICE)}"
            return text, _CHOICE
        case Or(left, right):
            return f"{_at(left, _OR)} || {_at(right, _AND)}", _OR
        case And(left, right):
            return f"{_at(left, _AND)} && {_at(right, _COMPARISON)}", _AND
        case Not(of):
            return f"!{_prefixed(of)}", _COMPARISON
        case Count(of, guard, future):
            sign = "#>" if future else "#" if guard is None else f"#[{guard}]"
            return f"{sign} {_prefixed(of)}", _PREFIX
        case Comparison(relation, left, right):
            return f"{_at(left, _SUM)} {relation} {_at(right, _SUM)}", _COMPARISON
        case In(value, tokens):
            listed = ", ".join(f'"{token}"' for token in tokens)
            return f"{_at(value, _SUM)} in {{{listed}}}", _COMPARISON
        case Arithmetic(operator, left, right):
            level = _SUM if operator in "+-" else _PRODUCT
            return f"{_at(left, level)} {operator} {_at(right, level + 1)}", level
    raise TypeError(f"{type(part).__name__} is no part of the language")


def _table(table: Table) -> str:
    arguments = ", ".join(map(expression_text, table.arguments))
    entries = [
        " ".join(f'"{text}"' for text in texts) + f": {expression_text(value)}"
        for texts, value in table.entries
    ]
    return (
        f"table({arguments}) {{{', '.join([*entries, f'else: {expression_text(table.default)}'])}}}"
    )


def _prefixed(part: Expression) -> str:
    """The operand of ``!`` or ``#``: another ``!`` needs no brackets here."""
    return _at(part, _COMPARISON if isinstance(part, Not) else _PREFIX)


def _at(part: Expression, least: int) -> str:
    text, level = _written(part)
    return text if level >= least else f"({text})"
