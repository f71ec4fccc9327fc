"""The syntax tree of C-RASP: Boolean formulas and integer terms, with a value at every position.

    φ ::= true | "token" | predicate | name | !φ | φ && φ | φ || φ | t ⋈ t
    t ::= k | name | # φ | #[guard] φ | #> φ | t + t | t − t | k * t | min | max | t if φ else t

``# φ`` at position i is the number of positions j ≤ i where φ holds (`depth` §3.1). Trees are
immutable and compare by structure; :mod:`interp.crasp.dsl` has the operators that build them in
Python. A tree says nothing about what it costs: see :mod:`interp.crasp.analysis` for its depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, get_args

from interp.crasp.predicates import Predicate
from interp.errors import Problems

__all__ = [
    "And",
    "Assignment",
    "Choice",
    "Comparison",
    "Constant",
    "Count",
    "Difference",
    "Expression",
    "Formula",
    "FormulaName",
    "Holds",
    "Larger",
    "Multiple",
    "Not",
    "Or",
    "Program",
    "Relation",
    "Smaller",
    "Sum",
    "Symbol",
    "Term",
    "TermName",
    "Truth",
    "children",
]

Relation = Literal["==", "!=", "<=", ">=", "<", ">"]


@dataclass(frozen=True)
class Expression:
    """The base class of formulas and terms."""


@dataclass(frozen=True)
class Formula(Expression):
    """An expression that is true or false at every position."""


@dataclass(frozen=True)
class Term(Expression):
    """An expression whose value is an integer at every position."""


@dataclass(frozen=True)
class Truth(Formula):
    """The constant ``true`` or ``false``."""

    value: bool


@dataclass(frozen=True)
class Symbol(Formula):
    """The formula that is true where the token is ``token``.

    Raises:
        ArgumentError: for a token that the text form cannot quote.
    """

    token: str

    def __post_init__(self) -> None:
        problems = Problems("Symbol")
        good = not set(self.token) & set('"\r\n')
        rule = "must not hold a quote or a line break"
        problems.need(good, "token", rule, self.token, "rename the token")
        problems.raise_if_any()


@dataclass(frozen=True)
class Holds(Formula):
    """The formula of an imported predicate of one position."""

    predicate: str


@dataclass(frozen=True)
class FormulaName(Formula):
    """A reference to an earlier line that is a formula."""

    name: str


@dataclass(frozen=True)
class Not(Formula):
    """The negation of a formula, ``!φ``."""

    of: Formula


@dataclass(frozen=True)
class And(Formula):
    """The conjunction of two formulas, ``φ && φ``."""

    left: Formula
    right: Formula


@dataclass(frozen=True)
class Or(Formula):
    """The disjunction of two formulas, ``φ || φ``."""

    left: Formula
    right: Formula


@dataclass(frozen=True)
class Comparison(Formula):
    """A comparison of two terms: ``left relation right``.

    Raises:
        ArgumentError: for an unknown relation.
    """

    relation: Relation
    left: Term
    right: Term

    def __post_init__(self) -> None:
        problems = Problems("Comparison")
        known = get_args(Relation)
        rule = "must be one of " + " ".join(known)
        problems.need(self.relation in known, "relation", rule, self.relation, "pick one")
        problems.raise_if_any()


@dataclass(frozen=True)
class Constant(Term):
    """An integer constant."""

    value: int


@dataclass(frozen=True)
class TermName(Term):
    """A reference to an earlier line that is a term."""

    name: str


@dataclass(frozen=True)
class Count(Term):
    """How many positions satisfy ``of``, from the first to this one, or from this one to the last.

    Attributes:
        of: The formula that is counted.
        guard: An imported binary predicate: only j with guard(i, j) are counted.
        future: Count j ≥ i instead of j ≤ i.

    Raises:
        ArgumentError: for a guarded count of the future, which the language does not have.
    """

    of: Formula
    guard: str | None = None
    future: bool = False

    def __post_init__(self) -> None:
        problems = Problems("Count")
        good = self.guard is None or not self.future
        problems.need(good, "guard", "counts the past only", self.guard, "drop guard or future")
        problems.raise_if_any()


@dataclass(frozen=True)
class Sum(Term):
    """The sum ``left + right`` of two terms."""

    left: Term
    right: Term


@dataclass(frozen=True)
class Difference(Term):
    """The difference ``left - right`` of two terms."""

    left: Term
    right: Term


@dataclass(frozen=True)
class Multiple(Term):
    """The multiple ``factor * of`` of a term by an integer factor."""

    factor: int
    of: Term


@dataclass(frozen=True)
class Smaller(Term):
    """The smaller of two terms, ``min(left, right)``."""

    left: Term
    right: Term


@dataclass(frozen=True)
class Larger(Term):
    """The larger of two terms, ``max(left, right)``."""

    left: Term
    right: Term


@dataclass(frozen=True)
class Choice(Term):
    """A choice between two terms: ``then if condition else other``."""

    then: Term
    condition: Formula
    other: Term


@dataclass(frozen=True)
class Assignment:
    """One line of a program: ``name = expression``."""

    name: str
    expression: Expression


@dataclass(frozen=True)
class Program:
    """A program: its lines in order, of which the last one gives the answer.

    Attributes:
        lines: At least one; a name is given once, after every name it uses.
        imports: The predicates that the lines may use.

    Raises:
        ArgumentError: naming every line that breaks those rules.
    """

    lines: tuple[Assignment, ...]
    imports: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        problems = Problems("Program")
        lines = len(self.lines)
        problems.need(lines > 0, "lines", "must be at least one", lines, "write NAME = EXPRESSION")
        known: dict[str, type[Expression]] = {}
        arities = {predicate.name: predicate.arity for predicate in self.imports}
        for line in self.lines:
            fresh = line.name not in known and line.name not in arities
            problems.need(fresh, "name", "must be given once", line.name, "choose another name")
            for part in children(line.expression, deep=True):
                _check_reference(part, known, arities, problems)
            known[line.name] = Formula if isinstance(line.expression, Formula) else Term
        problems.raise_if_any()

    def __getitem__(self, name: str) -> Expression:
        """The expression on the line of this name.

        Raises:
            ArgumentError: if no line has that name.
        """
        found = [line.expression for line in self.lines if line.name == name]
        problems = Problems("Program")
        names = ", ".join(line.name for line in self.lines)
        problems.need(bool(found), "name", f"must be one of {names}", name, "pick one")
        problems.raise_if_any()
        return found[0]


def children(expression: Expression, *, deep: bool = False) -> Iterator[Expression]:
    """The expressions directly inside one; with ``deep`` the expression itself and all inside
    it."""
    if deep:
        yield expression
    for field in fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, Expression):
            if deep:
                yield from children(value, deep=True)
            else:
                yield value


def _check_reference(
    part: Expression,
    known: dict[str, type[Expression]],
    arities: dict[str, int],
    problems: Problems,
) -> None:
    if isinstance(part, FormulaName | TermName):
        kind = Formula if isinstance(part, FormulaName) else Term
        advice = "define it on an earlier line"
        rule = f"must be an earlier {kind.__name__.lower()}"
        problems.need(known.get(part.name) is kind, "name", rule, part.name, advice)
    used = (part.predicate, 1) if isinstance(part, Holds) else None
    if isinstance(part, Count) and part.guard is not None:
        used = (part.guard, 2)
    if used is not None:
        rule = f"must be imported and take {used[1]} position{'s' * (used[1] - 1)}"
        problems.need(arities.get(used[0]) == used[1], "predicate", rule, used[0], "import it")
