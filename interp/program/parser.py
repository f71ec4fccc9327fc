"""Parse the text of a program that counts (``.cr``) into a typed tree; report mistakes by place.

There is one statement per line: ``name = expression`` or ``#import predicate``; ``//`` begins a
comment. A name is defined once and before it is used; its line determines whether it is a formula
or a number. Imports may stand anywhere. That a text parses does not show that it accepts what its
author meant.

    loosest   φ || φ
              φ && φ
              t == t   !=   <   >   <=   >=        (do not chain)
              t if φ else t                        (groups to the right)
              t + t    t − t                       (group to the left)
              k * t                                (groups to the right)
    tightest  !φ   #φ   #[guard] φ   #> φ   −t

So ``#"a" == 0 && "b"`` is ``((#"a") == 0) && "b"``, and counting a conjunction takes brackets:
``#("a" && "b")``. Every operator has formulas or numbers as operands.

A :class:`ProgramError` names all mistakes that were found, each with its line of source, so that a
file can be corrected in one go. A statement never spans lines, so one mistake does not hide those
of other lines, and consequences of a reported mistake are not reported again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from interp.errors import ProoflensError
from interp.program import syntax
from interp.program.predicates import BUILT_IN, Predicate, find_predicate
from interp.program.syntax import Assignment, Expression, Formula, Program, Term
from interp.reading import read_text


@dataclass(frozen=True, order=True)
class Mistake:
    """One mistake in a program's text.

    Attributes:
        line: The line's number, counted from 1.
        column: The column, counted from 1, in characters; a tab counts as one.
        message: What is wrong and how to correct it.
        source: The text of the line.
        width: The number of characters that the mistake spans.
    """

    line: int
    column: int
    message: str
    source: str = ""
    width: int = 1

    def report(self, name: str) -> str:
        """Return ``name:line:column: message``, with the source line and carets below it."""
        gap = re.sub(r"[^\t]", " ", self.source[: self.column - 1])
        marks = "^" * max(self.width, 1)
        return (
            f"{name}:{self.line}:{self.column}: {self.message}\n    {self.source}\n    {gap}{marks}"
        )


class ProgramError(ProoflensError):
    """Raised for a text that is not a program; it names every mistake.

    Attributes:
        mistakes: All mistakes, in the order of the text.
    """

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes))
        number = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        told = "\n".join(mistake.report(name) for mistake in self.mistakes)
        super().__init__(f"{name}: {number}\n{told}")


_RESERVED = frozenset({"if", "else", "true", "false", "min", "max", "import"})

_GRAMMAR = r"""
start: IMPORT NAME -> imported
     | NAME "=" or -> assigned

?or: and | or _OR and -> or_
?and: compared | and _AND compared -> and_
?compared: choice | choice RELATION choice -> comparison
?choice: sum | sum "if" or "else" choice -> choice
?sum: product | sum "+" product -> sum | sum "-" product -> difference
?product: prefixed | prefixed "*" product -> multiple
?prefixed: atom
    | "!" prefixed -> not_
    | "-" prefixed -> minus
    | "#" prefixed -> count
    | "#>" prefixed -> count_future
    | "#" "[" NAME "]" prefixed -> count_guarded
?atom: "(" or ")"
    | "true" -> true
    | "false" -> false
    | NAME -> name
    | NUMBER -> number
    | QUOTED -> symbol
    | "min" "(" or "," or ")" -> smaller
    | "max" "(" or "," or ")" -> larger

_OR: "||"
_AND: "&&"
IMPORT: /#import\b/
RELATION: "==" | "!=" | "<=" | ">=" | "<" | ">"
NAME: /[A-Za-z_][A-Za-z_0-9]*/
NUMBER: /[0-9]+/
QUOTED: /"[^"\r\n]*"/
COMMENT: /\/\/[^\r\n]*/
%ignore COMMENT
%ignore /[ \t]+/
"""

_SHOWN = {
    "$END": "the end of the line",
    "COMMA": ",",
    "ELSE": "else",
    "EQUAL": "=",
    "NAME": "a name",
    "RPAR": ")",
    "RSQB": "]",
    "LPAR": "(",
}
_OPERATORS = {"RELATION", "_OR", "_AND", "PLUS", "MINUS", "STAR", "IF"}
_INSTEAD = {
    "&": "and is written &&",
    "|": "or is written ||",
    "'": 'tokens stand in double quotes, as in "a"',
    '"': "this quote is not closed",
    "?": "a choice is written t if φ else t",
    "/": "comments begin with //",
    "~": "not is written !",
}
_WORDS = {"and": "and is written &&", "or": "or is written ||", "not": "not is written !"}


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", propagate_positions=True)


def parse_line(source: str, line: int) -> Tree[Token] | Mistake | None:
    """Return the line's parse tree, or its mistake; None for an empty line or a comment."""
    if not source.strip(" \t") or source.lstrip(" \t").startswith("//"):
        return None
    try:
        return _parser().parse(source)
    except UnexpectedCharacters as error:
        found = source[error.column - 1]
        advice = _INSTEAD.get(found, "it is no part of the language")
        return Mistake(line, error.column, f"unexpected {found}: {advice}", source)
    except UnexpectedToken as error:
        return _token_mistake(error, source, line)


def _token_mistake(error: UnexpectedToken, source: str, line: int) -> Mistake:
    token = error.token
    if token.type == "$END":  # borrows its place from the last token
        message = f"the line ends where {_expectation(error)} is expected"
        return Mistake(line, int(token.end_column or 1), message, source)
    advice = _advice(token, error)
    message = f"unexpected {token}: {advice or _expectation(error) + ' is expected'}"
    return Mistake(line, int(token.column or 1), message, source, len(token))


def _advice(token: Token, error: UnexpectedToken) -> str | None:
    """Return advice for a frequent slip; None for other mistakes."""
    if token in _RESERVED and "NAME" in error.accepts and "NUMBER" not in error.accepts:
        return f"{token} is a word of the language, choose another name"
    if token.type == "EQUAL" and "EQUAL" not in error.accepts:
        return "comparing is written =="
    if token.type == "RELATION" and "_AND" in error.accepts:
        return "comparisons do not chain, write a < b && b < c"
    return _WORDS.get(str(token))


def _expectation(error: UnexpectedToken) -> str:
    accepts = set(error.accepts)
    if "NUMBER" in accepts:
        return "a formula or a number"
    shown = ["an operator"] if accepts & _OPERATORS else []
    shown += sorted(_SHOWN[kind] for kind in accepts & set(_SHOWN))
    if "IMPORT" in accepts:
        return "NAME = EXPRESSION or #import NAME"
    return " or ".join(shown)


_DEEPEST = 60  # levels of one expression: trees are walked by recursion
_LONGEST_NUMBER = 18  # digits, so that it fits 64 bits
_SIGNS: Mapping[str, syntax.Operator] = {"sum": "+", "difference": "-"}
_EXTREMES = {"smaller": syntax.Smaller, "larger": syntax.Larger}
_FORMULAS = {"and_": syntax.And, "or_": syntax.Or}


@dataclass(frozen=True)
class Scope:
    """The names that are known at a given line.

    Attributes:
        imports: Name → predicate; None if the import itself is wrong.
        given: Line number → the name that the line defines.
        values: Name → expression of the lines so far; None if the line is wrong.
    """

    imports: Mapping[str, Predicate | None]
    given: Mapping[int, str]
    values: dict[str, Expression | None] = field(default_factory=dict)


def resolve(
    tree: Tree[Token] | Token, scope: Scope, line: int, source: str
) -> tuple[Expression | None, list[Mistake]]:
    """Return the typed expression of a line's right-hand side, and the mistakes in it.

    Args:
        tree: The parse tree of the right-hand side.
        scope: The names that are known.
        line: The line's number.
        source: The text of the line.
    """
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
        """Return the operand as a formula; if it is a number, record a mistake and return None."""
        found = self.build(tree, level)
        if isinstance(found, Term):
            hint = "compare it, as in … >= 1"
            if isinstance(found, syntax.Count):
                hint += "; # binds tighter than the operators, so bracket what is counted"
            self.wrong(tree, f"a formula is needed and this is a number: {hint}")
        return found if isinstance(found, Formula) else None

    def term(self, tree: Tree[Token], level: int) -> Term | None:
        """Return the operand as a number; if it is a formula, record a mistake and return None."""
        found = self.build(tree, level)
        if isinstance(found, Formula):
            hint = "count it (# …) or write 1 if … else 0"
            self.wrong(tree, f"a number is needed and this is a formula: {hint}")
        return found if isinstance(found, Term) else None

    def build(self, tree: Tree[Token], level: int) -> Expression | None:
        """Return the typed expression; None after recording a mistake."""
        if level > _DEEPEST:
            if not self.mistakes:
                message = f"nested more than {_DEEPEST} deep: give parts of it names"
                self.wrong(tree, message)
            return None
        match tree.data:
            case "true" | "false":
                return syntax.Truth(tree.data == "true")
            case "symbol":
                return syntax.Symbol(str(tree.children[0])[1:-1])
            case "name":
                return self.resolve(cast("Token", tree.children[0]))
            case "number":
                return self.number(cast("Token", tree.children[0]))
            case "count" | "count_future" | "count_guarded":
                return self.count(tree, level + 1)
            case "not_" | "and_" | "or_" | "comparison":
                return self.boolean(tree, level + 1)
        return self.arithmetic(tree, level + 1)

    def boolean(self, tree: Tree[Token], level: int) -> Formula | None:
        """Return the expression of an operator whose result is a formula."""
        parts = tree.children
        if tree.data == "comparison":
            left, right = (self.term(cast("Tree[Token]", parts[i]), level) for i in (0, 2))
            if left is None or right is None:
                return None
            return syntax.Comparison(cast("syntax.Relation", str(parts[1])), left, right)
        operands = [self.formula(cast("Tree[Token]", part), level) for part in parts]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return None
        return syntax.Not(*known) if tree.data == "not_" else _FORMULAS[tree.data](*known)

    def arithmetic(self, tree: Tree[Token], level: int) -> Term | None:
        """Return the expression of an operator whose result is a number."""
        parts = [cast("Tree[Token]", part) for part in tree.children]
        if tree.data == "choice":
            then, other = self.term(parts[0], level), self.term(parts[2], level)
            condition = self.formula(parts[1], level)
            if then is None or condition is None or other is None:
                return None
            return syntax.Choice(then, condition, other)
        operands = [self.term(part, level) for part in parts]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return None
        if tree.data == "minus":
            of = known[0]
            if isinstance(of, syntax.Constant):
                return syntax.Constant(-of.value)
            return syntax.Operation("*", syntax.Constant(-1), of)
        if tree.data == "multiple":
            if isinstance(known[0], syntax.Constant):
                return syntax.Operation("*", *known)
            self.wrong(parts[0], "a product has an integer on its left: write k * term")
            return None
        if tree.data in _SIGNS:
            return syntax.Operation(_SIGNS[tree.data], *known)
        return _EXTREMES[tree.data](*known)

    def count(self, tree: Tree[Token], level: int) -> syntax.Count | None:
        """Return the expression of a count: ``# φ``, ``#> φ`` or ``#[guard] φ``."""
        of = self.formula(cast("Tree[Token]", tree.children[-1]), level)
        guard = None
        if tree.data == "count_guarded":
            guard = cast("Token", tree.children[0])
            if not self.is_guard(guard):
                return None
        if of is None:
            return None
        return syntax.Count(of, None if guard is None else str(guard), tree.data == "count_future")

    def is_guard(self, token: Token) -> bool:
        """Return whether a name is an imported predicate of two positions, as a count's guard must
        be.

        A name that is not imported, or takes one position, is recorded as a mistake at the token.
        """
        name = str(token)
        if name not in self.scope.imports:
            known = find_predicate(name)
            advice = f"add #import {name}" if known else "import a predicate of two positions"
            self.wrong(token, f"{name} is not imported: {advice}")
            return False
        predicate = self.scope.imports[name]
        if predicate is not None and predicate.arity == 1:
            self.wrong(token, f"{name} is a formula, not a guard: write # ({name} && …)")
        return predicate is not None and predicate.arity == 2

    def number(self, token: Token) -> syntax.Constant | None:
        """Return the constant that a token of digits stands for."""
        if len(token) > _LONGEST_NUMBER:
            self.wrong(token, f"a number has at most {_LONGEST_NUMBER} digits")
            return None
        return syntax.Constant(int(token))

    def resolve(self, token: Token) -> Expression | None:
        """Return the earlier line or imported predicate that a name stands for."""
        name, scope = str(token), self.scope
        if name in scope.values:
            value = scope.values[name]
            if value is None:
                return None
            return syntax.FormulaName(name) if isinstance(value, Formula) else syntax.TermName(name)
        if name in scope.imports:
            predicate = scope.imports[name]
            if predicate is not None and predicate.arity == 2:
                self.wrong(token, f"{name} is a guard: write #[{name}] φ")
            return syntax.Holds(name) if predicate is not None and predicate.arity == 1 else None
        self.wrong(token, self.unknown(name))
        return None

    def unknown(self, name: str) -> str:
        """Return the message for a name that is not defined here."""
        given = self.scope.given
        if later := [number for number, other in sorted(given.items()) if other == name]:
            where = "this line itself" if later[0] == self.line else f"line {later[0]}"
            return f"{name} is given on {where}: a name is given before it is used"
        if find_predicate(name) is not None:
            return f"{name} is not imported: add #import {name}"
        known = [*self.scope.values, *self.scope.imports]
        close = get_close_matches(name, known, n=1)
        meant = f"did you mean {close[0]}?" if close else f'a token is quoted, as in "{name}"'
        return f"{name} is not given on an earlier line: {meant}"


def _span(place: Tree[Token] | Token) -> tuple[int, int]:
    """Return the first column of a tree or token, and the column after its last."""
    where = place if isinstance(place, Token) else place.meta
    return int(where.column or 1), int(where.end_column or 2)


_MOST_BYTES = 1 << 20

_NAMED = re.compile(r"[ \t]*([A-Za-z_][A-Za-z_0-9]*)[ \t]*=")


def read_program(path: Path, predicates: Iterable[Predicate] = ()) -> Program:
    """Read the program of a ``.cr`` file (UTF-8).

    Raises:
        ArgumentError: if the file cannot be read as text.
        ProgramError: if the text has mistakes, as in :func:`parse_program`.
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
    return Program(tuple(lines), imports=tuple(p for p in imports.values() if p is not None))


def _imports(
    trees: Mapping[int, Tree[Token]], known: Mapping[str, Predicate], sources: list[str]
) -> tuple[dict[str, Predicate | None], list[Mistake]]:
    """Return predicate name → predicate; None for one that does not exist, which is reported here,
    once."""
    found: dict[str, Predicate | None] = {}
    mistakes = []
    for number, tree in trees.items():
        if tree.data != "imported":
            continue
        token = _first_name(tree)
        found[str(token)] = known.get(str(token)) or find_predicate(str(token))
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
    """Return the typed lines, and their mistakes. A name whose line is wrong is known, but has no
    type."""
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
