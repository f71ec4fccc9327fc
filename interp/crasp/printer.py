"""Print programs as text that the parser reads back to the same tree, with few brackets.

    level   0 ||    1 &&    2 == != < > <= >=    3 if else    4 + -    5 *    6 ! # #[p] #> -

An operand is bracketed when its own level is lower than the place asks for. Comments and brackets
of a file are not in the tree: printing what was parsed keeps the meaning, not the layout.
"""

from __future__ import annotations

from interp.crasp.syntax import (
    And,
    Choice,
    Comparison,
    Constant,
    Count,
    Difference,
    Expression,
    FormulaName,
    Holds,
    Larger,
    Multiple,
    Not,
    Or,
    Program,
    Smaller,
    Sum,
    Symbol,
    TermName,
    Truth,
)

__all__ = ["expression_text", "program_text"]

_OR, _AND, _COMPARISON, _CHOICE, _SUM, _PRODUCT, _PREFIX, _ATOM = range(8)


def program_text(program: Program) -> str:
    """The text of a program, as in a ``.cr`` file."""
    lines = [f"#import {predicate.name}" for predicate in program.imports]
    lines += [f"{line.name} = {expression_text(line.expression)}" for line in program.lines]
    return "\n".join(lines) + "\n"


def expression_text(expression: Expression) -> str:
    """The text of one expression."""
    return _written(expression)[0]


def _written(expression: Expression) -> tuple[str, int]:
    """An expression's text, and the level at which its operator binds."""
    match expression:
        case Truth(value):
            return ("true" if value else "false"), _ATOM
        case Symbol(token):
            return f'"{token}"', _ATOM
        case FormulaName(name) | TermName(name) | Holds(name):
            return name, _ATOM
        case Constant(value):
            return str(value), _ATOM if value >= 0 else _PREFIX
        case Smaller(left, right):
            return f"min({expression_text(left)}, {expression_text(right)})", _ATOM
        case Larger(left, right):
            return f"max({expression_text(left)}, {expression_text(right)})", _ATOM
        case Not(of):
            return f"!{_at(of, _PREFIX)}", _PREFIX
        case Count(of, guard, future):
            sign = "#>" if future else "#" if guard is None else f"#[{guard}]"
            return f"{sign} {_at(of, _PREFIX)}", _PREFIX
    return _operator(expression)


def _operator(expression: Expression) -> tuple[str, int]:
    """The same for infix operators; all but ``*`` and ``else`` group to the left."""
    match expression:
        case Or(left, right):
            return f"{_at(left, _OR)} || {_at(right, _AND)}", _OR
        case And(left, right):
            return f"{_at(left, _AND)} && {_at(right, _COMPARISON)}", _AND
        case Comparison(relation, left, right):
            return f"{_at(left, _CHOICE)} {relation} {_at(right, _CHOICE)}", _COMPARISON
        case Choice(then, condition, other):
            condition_text = expression_text(condition)
            return f"{_at(then, _SUM)} if {condition_text} else {_at(other, _CHOICE)}", _CHOICE
        case Sum(left, right):
            return f"{_at(left, _SUM)} + {_at(right, _PRODUCT)}", _SUM
        case Difference(left, right):
            return f"{_at(left, _SUM)} - {_at(right, _PRODUCT)}", _SUM
        case Multiple(factor, of):
            return f"{factor} * {_at(of, _PRODUCT)}", _PRODUCT
    raise TypeError(f"{type(expression).__name__} is no part of the language")


def _at(expression: Expression, least: int) -> str:
    text, level = _written(expression)
    return text if level >= least else f"({text})"
