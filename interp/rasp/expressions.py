"""What a program's values are made of: tokens, numbers and truths of a position, and what is looked
back for. :mod:`interp.rasp.syntax` says what each means and puts them together to programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from interp.errors import Problems

__all__ = [
    "And",
    "Arithmetic",
    "Average",
    "Boolean",
    "Choice",
    "Compare",
    "Count",
    "Expression",
    "In",
    "Key",
    "Kind",
    "Literal_",
    "Name",
    "Not",
    "Nothing",
    "Number",
    "Operator",
    "Or",
    "Pick",
    "Position",
    "Relation",
    "Table",
    "Token",
    "Which",
    "children",
]

Relation = Literal["==", "!=", "<=", ">=", "<", ">"]
Operator = Literal["+", "-", "*", "%"]
Which = Literal["first", "last", "least", "greatest", "commonest", "rarest"]
Kind = Literal["token", "number", "boolean"]


@dataclass(frozen=True)
class Expression:
    """A value that every position has."""


@dataclass(frozen=True)
class Token(Expression):
    """``token``: the token at this position."""


@dataclass(frozen=True)
class Position(Expression):
    """``position``: how many positions come before this one."""


@dataclass(frozen=True)
class Literal_(Expression):  # noqa: N801
    """``"text"``: one token of the vocabulary."""

    text: str

    def __post_init__(self) -> None:
        problems = Problems("Literal_")
        good = not set(self.text) & set('"\r\n')
        rule = "must not hold a quote or a line break"
        problems.need(good, "text", rule, self.text, "rename the token")
        problems.raise_if_any()


@dataclass(frozen=True)
class Number(Expression):
    """An integer."""

    value: int


@dataclass(frozen=True)
class Boolean(Expression):
    """``true`` or ``false``."""

    value: bool


@dataclass(frozen=True)
class Nothing(Expression):
    """``none``: the token of a position that was looked for and is not there."""


@dataclass(frozen=True)
class Name(Expression):
    """The value of an earlier line."""

    name: str


@dataclass(frozen=True)
class Key(Expression):
    """``key.NAME``: a value at the earlier position that a condition is about.

    Attributes:
        name: ``token``, ``position``, or the name of an earlier line.
    """

    name: str


@dataclass(frozen=True)
class Arithmetic(Expression):
    """A sum, difference, product or remainder; a token plus a number is the token of that
    number."""

    operator: Operator
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Compare(Expression):
    """``left relation right``; tokens are ordered: words as in the vocabulary, then numbers."""

    relation: Relation
    left: Expression
    right: Expression


@dataclass(frozen=True)
class In(Expression):
    """``value in {"a", "b"}``."""

    value: Expression
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Not(Expression):
    """``!value``."""

    of: Expression


@dataclass(frozen=True)
class And(Expression):
    """``left && right``."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Or(Expression):
    """``left || right``."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Choice(Expression):
    """``then if condition else other``."""

    then: Expression
    condition: Expression
    other: Expression


@dataclass(frozen=True)
class Table(Expression):
    """A value looked up: what could not be named stays written out.

    Attributes:
        arguments: What it depends on; tokens.
        entries: (texts of the arguments, a constant), each combination once.
        default: For combinations that are not listed.
    """

    arguments: tuple[Expression, ...]
    entries: tuple[tuple[tuple[str, ...], Expression], ...]
    default: Expression


@dataclass(frozen=True)
class Count(Expression):
    """``count(condition)``: how many positions up to this one satisfy it."""

    where: Expression


@dataclass(frozen=True)
class Average(Expression):
    """``average(value where condition)``: the mean of a number; 0 where there is nothing."""

    value: Expression
    where: Expression


@dataclass(frozen=True)
class Pick(Expression):
    """``last(value where condition)`` and its kin: the value at one of the positions."""

    which: Which
    value: Expression
    where: Expression


def children(expression: Expression, *, deep: bool = False) -> Iterator[Expression]:
    """The expressions directly inside one; with ``deep`` itself and all expressions inside."""
    if deep:
        yield expression
    inside: list[Expression] = []
    for field in fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, Expression):
            inside.append(value)
        elif isinstance(expression, Table) and isinstance(value, tuple):
            inside += [v for v in value if isinstance(v, Expression)]
            inside += [v[1] for v in value if isinstance(v, tuple)]
    for part in inside:
        if deep:
            yield from children(part, deep=True)
        else:
            yield part
