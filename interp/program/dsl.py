"""Write programs in Python: the language's operators build the same trees as its text.

    lines = Lines()
    opened = lines.let("opened", count(sym("(")))
    closed = lines.let("closed", count(sym(")")))
    lines.let("balanced", (opened == closed) & (count(opened < closed) == 0))
    lines.program()

Formulas combine with ``&``, ``|``, ``~``, numbers with ``+``, ``-``, ``*`` and comparisons. The
wrappers here carry the operators, so that trees themselves compare by structure. Python's ``and``,
``or``, ``not`` and chained comparisons ask for a truth value there is none of, and are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, overload

from interp.errors import ArgumentError, Problems
from interp.program import syntax
from interp.program.predicates import Predicate
from interp.program.syntax import Assignment, Expression, Formula, Program, Term


@dataclass(frozen=True, eq=False)
class _Wrapped:
    def __bool__(self) -> NoReturn:
        raise ArgumentError(
            "an expression has a truth value at each position only: combine with & | ~ "
            "(in brackets), and write a < b < c as (a < b) & (b < c)"
        )


@dataclass(frozen=True, eq=False)
class Boolean(_Wrapped):
    """A formula that can be combined with operators."""

    tree: Formula

    def __and__(self, other: Boolean) -> Boolean:
        return Boolean(syntax.And(self.tree, _formula(other)))

    def __or__(self, other: Boolean) -> Boolean:
        return Boolean(syntax.Or(self.tree, _formula(other)))

    def __invert__(self) -> Boolean:
        return Boolean(syntax.Not(self.tree))


@dataclass(frozen=True, eq=False)
class Number(_Wrapped):
    """A number (term) that can be combined with operators; the other operand may be an ``int``."""

    tree: Term

    def __add__(self, other: Number | int) -> Number:
        return Number(syntax.Arithmetic("+", self.tree, _term(other)))

    def __radd__(self, other: int) -> Number:
        return Number(syntax.Arithmetic("+", _term(other), self.tree))

    def __sub__(self, other: Number | int) -> Number:
        return Number(syntax.Arithmetic("-", self.tree, _term(other)))

    def __rsub__(self, other: int) -> Number:
        return Number(syntax.Arithmetic("-", _term(other), self.tree))

    def __mul__(self, factor: int) -> Number:
        return Number(syntax.Arithmetic("*", syntax.Constant(factor), self.tree))

    __rmul__ = __mul__

    def __neg__(self) -> Number:
        return Number(syntax.Arithmetic("*", syntax.Constant(-1), self.tree))

    def __lt__(self, other: Number | int) -> Boolean:
        return Boolean(syntax.Comparison("<", self.tree, _term(other)))

    def __le__(self, other: Number | int) -> Boolean:
        return Boolean(syntax.Comparison("<=", self.tree, _term(other)))

    def __gt__(self, other: Number | int) -> Boolean:
        return Boolean(syntax.Comparison(">", self.tree, _term(other)))

    def __ge__(self, other: Number | int) -> Boolean:
        return Boolean(syntax.Comparison(">=", self.tree, _term(other)))

    def __eq__(self, other: Number | int) -> Boolean:  # type: ignore[override]
        return Boolean(syntax.Comparison("==", self.tree, _term(other)))

    def __ne__(self, other: Number | int) -> Boolean:  # type: ignore[override]
        return Boolean(syntax.Comparison("!=", self.tree, _term(other)))

    __hash__ = None  # type: ignore[assignment]


true = Boolean(syntax.Truth(True))
false = Boolean(syntax.Truth(False))


def sym(token: str) -> Boolean:
    """The formula that is true where the token is ``token``."""
    return Boolean(syntax.Symbol(token))


def holds(predicate: Predicate) -> Boolean:
    """The formula of an imported predicate of one position."""
    return Boolean(syntax.Holds(predicate.name))


def count(of: Boolean, *, guard: Predicate | None = None, future: bool = False) -> Number:
    """The number of positions up to here (with ``future``: from here on) at which ``of`` holds."""
    return Number(syntax.Count(_formula(of), None if guard is None else guard.name, future))


def smaller(left: Number | int, right: Number | int) -> Number:
    """The number ``min(left, right)``."""
    return Number(syntax.Smaller(_term(left), _term(right)))


def larger(left: Number | int, right: Number | int) -> Number:
    """The number ``max(left, right)``."""
    return Number(syntax.Larger(_term(left), _term(right)))


def choose(condition: Boolean, then: Number | int, other: Number | int) -> Number:
    """The number ``then if condition else other``."""
    return Number(syntax.Choice(_term(then), _formula(condition), _term(other)))


class Lines:
    """A program that is being built: its lines in order, and the predicates that it imports."""

    def __init__(self, *imports: Predicate) -> None:
        self._imports = imports
        self._lines: list[Assignment] = []

    @overload
    def let(self, name: str, value: Boolean) -> Boolean: ...
    @overload
    def let(self, name: str, value: Number) -> Number: ...

    def let(self, name: str, value: Boolean | Number) -> Boolean | Number:
        """Add the line ``name = value``; the returned value stands for that name in later lines."""
        tree: Expression = value.tree
        self._lines.append(Assignment(name, tree))
        return (
            Boolean(syntax.FormulaName(name))
            if isinstance(tree, Formula)
            else Number(syntax.TermName(name))
        )

    def program(self) -> Program:
        """The finished program.

        Raises:
            ArgumentError: if a name is given twice or a predicate is not imported.
        """
        return Program(tuple(self._lines), imports=self._imports)


def _term(value: Number | int) -> Term:
    problems = Problems("expression")
    good = isinstance(value, Number | int) and not isinstance(value, bool)
    problems.need(good, "operand", "must be a number or an int", value, "e.g. count(sym('a'))")
    problems.raise_if_any()
    return value.tree if isinstance(value, Number) else syntax.Constant(value)


def _formula(value: Boolean) -> Formula:
    problems = Problems("expression")
    good = isinstance(value, Boolean)
    problems.need(good, "operand", "must be a formula", value, "e.g. sym('a') or count(…) >= 1")
    problems.raise_if_any()
    return value.tree
