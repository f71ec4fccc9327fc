"""Programs as text: what the parser reads back to the same tree, with as few brackets as it can.

    level   0 if else    1 ||    2 &&    3 !    4 == != < > <= >= in    5 + -    6 * %    7 names,
    calls

An operand is bracketed when it binds more loosely than its place asks for.
"""

from __future__ import annotations

from interp.rasp.syntax import (
    Allow,
    And,
    Arithmetic,
    Average,
    Boolean,
    Choice,
    Compare,
    Count,
    Expression,
    In,
    Key,
    Literal_,
    Name,
    Next,
    Not,
    Nothing,
    Number,
    Or,
    Output,
    Pick,
    Position,
    Program,
    Table,
    Token,
)

__all__ = ["expression_text", "output_text", "program_text"]

_CHOICE, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _ATOM = range(8)


def program_text(program: Program) -> str:
    """The program as text, one line each."""
    lines = [f"{line.name} = {expression_text(line.expression)}" for line in program.lines]
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
    """The text and the level it binds at."""
    match part:
        case Token():
            return "token", _ATOM
        case Position():
            return "position", _ATOM
        case Literal_(text):
            return f'"{text}"', _ATOM
        case Number(value):
            return str(value), _ATOM
        case Boolean(value):
            return "true" if value else "false", _ATOM
        case Nothing():
            return "none", _ATOM
        case Name(name):
            return name, _ATOM
        case Key(name):
            return f"key.{name}", _ATOM
        case Count(where):
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
            return f"{_at(left, _AND)} && {_at(right, _NOT)}", _AND
        case Not(of):
            return f"!{_at(of, _NOT if isinstance(of, Not) else _ATOM)}", _NOT
        case Compare(relation, left, right):
            return f"{_at(left, _SUM)} {relation} {_at(right, _SUM)}", _COMPARE
        case In(value, tokens):
            listed = ", ".join(f'"{token}"' for token in tokens)
            return f"{_at(value, _SUM)} in {{{listed}}}", _COMPARE
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


def _at(part: Expression, least: int) -> str:
    text, level = _written(part)
    return text if level >= least else f"({text})"
