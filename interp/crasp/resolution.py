"""Turn a line's parse tree into a typed expression: look up names, tell formulas from numbers.

Every operator wants formulas or numbers as operands; a mistake is told at the operand. What could
not be resolved is None, and whatever contains it is None too, without a further message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import cast

from lark import Token, Tree

from interp.crasp.mistakes import Mistake
from interp.crasp.predicates import Predicate, built_in
from interp.crasp.syntax import (
    And,
    Choice,
    Comparison,
    Constant,
    Count,
    Difference,
    Expression,
    Formula,
    FormulaName,
    Holds,
    Larger,
    Multiple,
    Not,
    Or,
    Relation,
    Smaller,
    Sum,
    Symbol,
    Term,
    TermName,
    Truth,
)

__all__ = ["Scope", "resolve"]

_DEEPEST = 60  # levels of one expression: trees are walked by recursion
_LONGEST_NUMBER = 18  # digits, so that it fits 64 bits
_TERMS = {"sum": Sum, "difference": Difference, "smaller": Smaller, "larger": Larger}
_FORMULAS = {"and_": And, "or_": Or}


@dataclass(frozen=True)
class Scope:
    """What names mean at a given line.

    Attributes:
        imports: Name → predicate; None where the import itself is wrong.
        given: Line number → the name that the line defines.
        values: Name → expression of the lines so far; None where the line is wrong.
    """

    imports: Mapping[str, Predicate | None]
    given: Mapping[int, str]
    values: dict[str, Expression | None] = field(default_factory=dict)


def resolve(
    tree: Tree[Token] | Token, scope: Scope, line: int, source: str
) -> tuple[Expression | None, list[Mistake]]:
    """The typed expression of a line's right-hand side, and the mistakes in it."""
    resolver = _Resolver(scope, line, source)
    expression = resolver.build(cast("Tree[Token]", tree), 0)
    return expression, resolver.mistakes


class _Resolver:
    def __init__(self, scope: Scope, line: int, source: str) -> None:
        self.scope, self.line, self.source = scope, line, source
        self.mistakes: list[Mistake] = []

    def wrong(self, place: Tree[Token] | Token, message: str) -> None:
        """Record a mistake at a tree or token."""
        start, end = _span(place)
        self.mistakes.append(Mistake(self.line, start, message, self.source, end - start))

    def formula(self, tree: Tree[Token], level: int) -> Formula | None:
        """The operand as a formula; a number is recorded as a mistake."""
        found = self.build(tree, level)
        if isinstance(found, Term):
            hint = "compare it, as in … >= 1"
            if isinstance(found, Count):
                hint += "; # binds tighter than the operators, so bracket what is counted"
            self.wrong(tree, f"a formula is needed and this is a number: {hint}")
        return found if isinstance(found, Formula) else None

    def term(self, tree: Tree[Token], level: int) -> Term | None:
        """The operand as a number; a formula is recorded as a mistake."""
        found = self.build(tree, level)
        if isinstance(found, Formula):
            hint = "count it (# …) or write 1 if … else 0"
            self.wrong(tree, f"a number is needed and this is a formula: {hint}")
        return found if isinstance(found, Term) else None

    def build(self, tree: Tree[Token], level: int) -> Expression | None:
        """The typed expression, or None after recording why there is none."""
        if level > _DEEPEST:
            if not self.mistakes:
                message = f"nested more than {_DEEPEST} deep: give parts of it names"
                self.wrong(tree, message)
            return None
        match tree.data:
            case "true" | "false":
                return Truth(tree.data == "true")
            case "symbol":
                return Symbol(str(tree.children[0])[1:-1])
            case "name":
                return self.named(cast("Token", tree.children[0]))
            case "number":
                return self.number(cast("Token", tree.children[0]))
            case "count" | "count_future" | "count_guarded":
                return self.count(tree, level + 1)
            case "not_" | "and_" | "or_" | "comparison":
                return self.boolean(tree, level + 1)
        return self.arithmetic(tree, level + 1)

    def boolean(self, tree: Tree[Token], level: int) -> Formula | None:
        """The expression of an operator whose result is a formula."""
        parts = tree.children
        if tree.data == "comparison":
            left, right = (self.term(cast("Tree[Token]", parts[i]), level) for i in (0, 2))
            if left is None or right is None:
                return None
            return Comparison(cast("Relation", str(parts[1])), left, right)
        operands = [self.formula(cast("Tree[Token]", part), level) for part in parts]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return None
        return Not(*known) if tree.data == "not_" else _FORMULAS[tree.data](*known)

    def arithmetic(self, tree: Tree[Token], level: int) -> Term | None:
        """The expression of an operator whose result is a number."""
        parts = [cast("Tree[Token]", part) for part in tree.children]
        if tree.data == "choice":
            then, other = self.term(parts[0], level), self.term(parts[2], level)
            condition = self.formula(parts[1], level)
            if then is None or condition is None or other is None:
                return None
            return Choice(then, condition, other)
        operands = [self.term(part, level) for part in parts]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return None
        if tree.data == "minus":
            of = known[0]
            return Constant(-of.value) if isinstance(of, Constant) else Multiple(-1, of)
        if tree.data == "multiple":
            if isinstance(known[0], Constant):
                return Multiple(known[0].value, known[1])
            self.wrong(parts[0], "a product has an integer on its left: write k * term")
            return None
        return _TERMS[tree.data](*known)

    def count(self, tree: Tree[Token], level: int) -> Count | None:
        """The expression of a count: ``# φ``, ``#> φ`` or ``#[guard] φ``."""
        of = self.formula(cast("Tree[Token]", tree.children[-1]), level)
        guard = None
        if tree.data == "count_guarded":
            guard = cast("Token", tree.children[0])
            if not self.is_guard(guard):
                return None
        if of is None:
            return None
        return Count(of, None if guard is None else str(guard), tree.data == "count_future")

    def is_guard(self, token: Token) -> bool:
        """Whether the token names an imported predicate of two positions."""
        name = str(token)
        if name not in self.scope.imports:
            known = built_in(name)
            advice = f"add #import {name}" if known else "import a predicate of two positions"
            self.wrong(token, f"{name} is not imported: {advice}")
            return False
        predicate = self.scope.imports[name]
        if predicate is not None and predicate.arity == 1:
            self.wrong(token, f"{name} is a formula, not a guard: write # ({name} && …)")
        return predicate is not None and predicate.arity == 2

    def number(self, token: Token) -> Constant | None:
        """The constant that a token of digits stands for."""
        if len(token) > _LONGEST_NUMBER:
            self.wrong(token, f"a number has at most {_LONGEST_NUMBER} digits")
            return None
        return Constant(int(token))

    def named(self, token: Token) -> Expression | None:
        """The earlier line or imported predicate that a name stands for."""
        name, scope = str(token), self.scope
        if name in scope.values:
            value = scope.values[name]
            if value is None:
                return None
            return FormulaName(name) if isinstance(value, Formula) else TermName(name)
        if name in scope.imports:
            predicate = scope.imports[name]
            if predicate is not None and predicate.arity == 2:
                self.wrong(token, f"{name} is a guard: write #[{name}] φ")
            return Holds(name) if predicate is not None and predicate.arity == 1 else None
        self.wrong(token, self.unknown(name))
        return None

    def unknown(self, name: str) -> str:
        """The message for a name that is not defined here."""
        given = self.scope.given
        if later := [number for number, other in sorted(given.items()) if other == name]:
            where = "this line itself" if later[0] == self.line else f"line {later[0]}"
            return f"{name} is given on {where}: a name is given before it is used"
        if built_in(name) is not None:
            return f"{name} is not imported: add #import {name}"
        known = [*self.scope.values, *self.scope.imports]
        close = get_close_matches(name, known, n=1)
        meant = f"did you mean {close[0]}?" if close else f'a token is quoted, as in "{name}"'
        return f"{name} is not given on an earlier line: {meant}"


def _span(place: Tree[Token] | Token) -> tuple[int, int]:
    """The first column of a tree or token, and the column after its last."""
    where = place if isinstance(place, Token) else place.meta
    return int(where.column or 1), int(where.end_column or 2)
