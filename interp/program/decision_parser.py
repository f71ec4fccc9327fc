"""Parse the text of a program that decides into its syntax tree; report mistakes by line and
column.

There is one statement per line: ``#import predicate``, ``name = value``, ``allow "a" if
condition``, ``next = value`` or ``score "a" = number``; ``//`` begins a comment. From loosest to
tightest: ``if else``, ``||``, ``&&``, ``!``, comparisons (which do not chain), ``+ -``, ``* %``,
``#``. Where a Boolean is needed, ``"a"`` is true if the token is this one. That a text parses does
not show that it decides what its author meant.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from interp.program import syntax
from interp.program.parser import Mistake, ProgramError
from interp.program.predicates import BUILT_IN, find_predicate
from interp.program.syntax import Allow, Assignment, Expression, Next, Output, Program, Score
from interp.reading import read_text

_MOST_BYTES = 1 << 20
_IMPORT = re.compile(r"[ \t]*#import[ \t]+(\w+)[ \t]*(?://.*)?$")

_GRAMMAR = r"""
start: NAME "=" value -> assigned
     | "allow" QUOTED "if" value -> allow
     | "next" "=" value -> next
     | "score" QUOTED "=" value -> score

?value: or | or "if" or "else" value -> choice
?or: and | or "||" and -> or_
?and: negated | and "&&" negated -> and_
?negated: compared | "!" negated -> not_
?compared: sum | sum RELATION sum -> compare | sum "in" "{" QUOTED ("," QUOTED)* "}" -> in_
?sum: product | sum ADDING product -> arithmetic
?product: prefixed | product SCALING prefixed -> arithmetic
?prefixed: atom | HASH operand -> counted | GUARDED NAME "]" operand -> guarded
?operand: prefixed | "!" operand -> not_
?atom: "(" value ")"
    | HERE -> here
    | "true" -> true
    | "false" -> false
    | "none" -> none
    | "key" "." (NAME | HERE) -> key
    | "count" "(" value ")" -> count
    | "average" "(" value "where" value ")" -> average
    | WHICH "(" value "where" value ")" -> pick
    | EXTREME "(" value "," value ")" -> extreme
    | "table" "(" value ("," value)* ")" "{" (entry ",")* "else" ":" atom "}" -> table
    | NAME -> name
    | NUMBER -> number
    | ADDING NUMBER -> signed
    | QUOTED -> literal
entry: QUOTED+ ":" atom

HASH: /#>?(?![ \t]*\[)/
GUARDED: /#[ \t]*\[/
RELATION: "==" | "!=" | "<=" | ">=" | "<" | ">"
ADDING: "+" | "-"
SCALING: "*" | "%"
WHICH.2: /(first|last|least|greatest|commonest|rarest)\b/
EXTREME.2: /(min|max)(?=[ \t]*\()/
HERE.2: /(token|position)\b/
NAME: /[A-Za-z_][A-Za-z_0-9]*/
NUMBER: /[0-9]+/
QUOTED: /"[^"\r\n]*"/
%ignore /\/\/[^\r\n]*/
%ignore /[ \t]+/
"""


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", propagate_positions=True)


def read_program(path: Path) -> Program:
    """Read the program of a text file (UTF-8).

    Raises:
        ArgumentError: if the file cannot be read as text, or breaks a rule of the language.
        ProgramError: if the text does not follow the grammar, as in :func:`parse`.
    """
    text = read_text(path, most=_MOST_BYTES)
    return parse(text, name=str(path))


def parse(text: str, *, name: str = "program") -> Program:
    """Parse the text of a program.

    Args:
        text: The statements, one per line.
        name: The name of the text in error messages.

    Raises:
        ProgramError: naming every line that does not follow the grammar.
        ArgumentError: if lines follow the grammar but make no valid :class:`Program`.
    """
    lines: list[Assignment] = []
    outputs: list[Output] = []
    mistakes: list[Mistake] = []
    sources = re.split(r"\r\n|\r|\n", text)
    imports = {n[1]: p for s in sources if (n := _IMPORT.match(s)) and (p := find_predicate(n[1]))}
    tree = _TreeBuilder({predicate.name for predicate in imports.values() if predicate.arity == 1})
    for number, source in enumerate(sources, 1):
        if not source.strip() or source.lstrip().startswith("//"):
            continue
        if wanted := _IMPORT.match(source):
            if wanted[1] not in imports:
                message = f"there is no predicate {wanted[1]}: there are {BUILT_IN}"
                mistakes.append(
                    Mistake(number, wanted.start(1) + 1, message, source, len(wanted[1]))
                )
            continue
        try:
            found = tree.transform(_parser().parse(source))
        except UnexpectedInput as error:
            mistakes.append(_mistake(error, source, number))
            continue
        (lines if isinstance(found, Assignment) else outputs).append(found)
    if not mistakes and not outputs:
        message = "nothing is decided: end with allow, next or score"
        mistakes.append(Mistake(len(sources), 1, message, sources[-1]))
    if mistakes:
        raise ProgramError(name, mistakes)
    return Program(tuple(lines), tuple(outputs), tuple(imports.values()))


def _mistake(error: UnexpectedInput, source: str, number: int) -> Mistake:
    if isinstance(error, UnexpectedCharacters):
        found = source[error.column - 1]
        message = f"unexpected {found}: it is no part of the language"
        return Mistake(number, error.column, message, source)
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        token = error.token
        return Mistake(number, int(token.column or 1), f"unexpected {token}", source, len(token))
    return Mistake(number, len(source) + 1, "the line ends too early", source)


@v_args(inline=True)
class _TreeBuilder(Transformer):  # type: ignore[type-arg]
    """Converts parse trees to syntax trees.

    Args:
        predicates: Names of imported predicates of one position.
    """

    def __init__(self, predicates: Set[str]) -> None:
        super().__init__()
        self.predicates = predicates

    def assigned(self, name: Token, value: Expression) -> Assignment:
        return Assignment(str(name), value)

    def allow(self, token: Token, condition: Expression) -> Output:
        return Allow(token[1:-1], _truth(condition))

    def next(self, value: Expression) -> Output:
        return Next(value)

    def score(self, token: Token, value: Expression) -> Output:
        return Score(token[1:-1], value)

    def choice(self, then: Expression, condition: Expression, other: Expression) -> Expression:
        return syntax.Choice(then, _truth(condition), other)

    def or_(self, left: Expression, right: Expression) -> Expression:
        return syntax.Or(_truth(left), _truth(right))

    def and_(self, left: Expression, right: Expression) -> Expression:
        return syntax.And(_truth(left), _truth(right))

    def not_(self, of: Expression) -> Expression:
        return syntax.Not(_truth(of))

    def compare(self, left: Expression, relation: Any, right: Expression) -> Expression:
        return syntax.Comparison(str(relation), left, right)  # type: ignore[arg-type]

    def in_(self, value: Expression, *tokens: Token) -> Expression:
        return syntax.In(value, tuple(token[1:-1] for token in tokens))

    def arithmetic(self, left: Expression, operator: Any, right: Expression) -> Expression:
        return syntax.Operation(str(operator), left, right)  # type: ignore[arg-type]

    def here(self, word: Token) -> Expression:
        return syntax.Token() if word == "token" else syntax.Position()

    def key(self, name: Token) -> Expression:
        return syntax.Key(str(name))

    def name(self, name: Token) -> Expression:
        return syntax.Holds(str(name)) if name in self.predicates else syntax.Name(str(name))

    def number(self, value: Token) -> Expression:
        return syntax.Constant(int(value))

    def signed(self, sign: Token, value: Token) -> Expression:
        return syntax.Constant(int(value) * (-1 if sign == "-" else 1))

    def literal(self, text: Token) -> Expression:
        return syntax.Literal_(text[1:-1])

    def true(self) -> Expression:
        return syntax.Truth(True)

    def false(self) -> Expression:
        return syntax.Truth(False)

    def none(self) -> Expression:
        return syntax.Nothing()

    def count(self, where: Expression) -> Expression:
        return syntax.CountWhere(where)

    def counted(self, sign: Token, of: Expression) -> Expression:
        return syntax.Count(_truth(of), future=sign == "#>")

    def guarded(self, _: Token, guard: Token, of: Expression) -> Expression:
        return syntax.Count(_truth(of), str(guard))

    def extreme(self, word: Token, left: Expression, right: Expression) -> Expression:
        return (syntax.Smaller if word == "min" else syntax.Larger)(left, right)

    def average(self, value: Expression, where: Expression) -> Expression:
        return syntax.Average(value, where)

    def pick(self, which: Any, value: Expression, where: Expression) -> Expression:
        return syntax.Pick(str(which), value, where)  # type: ignore[arg-type]

    def entry(self, *parts: Any) -> tuple[tuple[str, ...], Expression]:
        return tuple(str(part)[1:-1] for part in parts[:-1]), parts[-1]

    def table(self, *parts: Any) -> Expression:
        entries = tuple(part for part in parts if isinstance(part, tuple))
        values = [part for part in parts if isinstance(part, Expression)]
        return syntax.Table(tuple(values[:-1]), entries, values[-1])


def _truth(part: Expression) -> Expression:
    """Return an expression as a Boolean: a quoted token becomes the formula that the token is this
    one."""
    return syntax.Symbol(part.text) if isinstance(part, syntax.Literal_) else part
