"""The syntax tree of RASP-like programs: named values by position, and what they decide.

    value ::= token | position | "text" | number | true | false | none | name
            | value + value | value - value | value * value | value % value
            | value == value (!= < <= > >=) | value in {"a", "b"} | !value | value && value | value
            || value | value if value else value | table(value, …) {"a" "b": value, …, else: value}
            | count(condition) | average(value where condition)
            | first(value where condition) | last(…) | least(…) | greatest(…)
            | commonest(value where condition) | rarest(…)
    condition ::= a value that may also speak of the earlier position: key.token, key.position,
    key.NAME

A looking-back expression ranges over all positions j up to and including the current one; inside
it ``key.x`` is the value of x at j and a plain ``x`` is the value here. ``first`` and ``last`` pick
by position, ``least`` and ``greatest`` by the order of the values, ``commonest`` and ``rarest`` by
how many of the positions have the value (of equally many the least); where no position satisfies
the condition the result is ``none``.

Outputs come after the lines, either ``allow "a" if condition`` (one line a token; tokens without a
line are never allowed), or ``next = value`` (the one token that follows), or ``score "a" = number``
(the token of the largest score follows).

Trees are immutable and compare by structure. A tree says nothing about which component of a model
computes it: :mod:`probes.decompile` keeps that beside the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from interp.errors import Problems
from interp.rasp.expressions import (
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
    Kind,
    Literal_,
    Name,
    Not,
    Nothing,
    Number,
    Operator,
    Or,
    Pick,
    Position,
    Relation,
    Table,
    Token,
    Which,
    children,
)

__all__ = [
    "Allow",
    "And",
    "Arithmetic",
    "Assignment",
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
    "Next",
    "Not",
    "Nothing",
    "Number",
    "Operator",
    "Or",
    "Output",
    "Pick",
    "Position",
    "Program",
    "Relation",
    "Score",
    "Table",
    "Token",
    "Which",
    "children",
    "kind_of",
]


@dataclass(frozen=True)
class Assignment:
    """One line: ``name = expression``."""

    name: str
    expression: Expression


@dataclass(frozen=True)
class Allow:
    """``allow "token" if condition``."""

    token: str
    condition: Expression


@dataclass(frozen=True)
class Next:
    """``next = value``."""

    value: Expression


@dataclass(frozen=True)
class Score:
    """``score "token" = number``."""

    token: str
    value: Expression


Output = Allow | Next | Score


@dataclass(frozen=True)
class Program:
    """Lines in order, then what they decide.

    Attributes:
        lines: A name is given once, after every name it uses.
        outputs: At least one, all of one kind; ``next`` once, a token once.

    Raises:
        ArgumentError: naming everything that breaks those rules, or an expression whose parts are
            of the wrong kind (a token where a truth is needed, ``key`` outside a condition).
    """

    lines: tuple[Assignment, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        problems = Problems("Program")
        known: dict[str, Kind] = {"token": "token", "position": "number"}
        for line in self.lines:
            rule = "must be given once, and be no word of the language"
            free = line.name not in known and line.name not in RESERVED
            problems.need(free, "name", rule, line.name, "choose another name")
            known[line.name] = _checked(line.expression, known, problems) or "number"
        _check_outputs(self.outputs, known, problems)
        problems.raise_if_any()

    @property
    def objective(self) -> str:
        """``sets`` where tokens are allowed one by one, ``next token`` where one is chosen."""
        return "sets" if isinstance(self.outputs[0], Allow) else "next token"

    @property
    def size(self) -> int:
        """Number of lines, outputs included."""
        return len(self.lines) + len(self.outputs)

    @property
    def nodes(self) -> int:
        """Number of expressions in it: what there is to read."""
        return len(self._parts())

    @property
    def unnamed(self) -> int:
        """Tables that no formula was found for."""
        return sum(isinstance(part, Table) for part in self._parts())

    @property
    def pointwise(self) -> bool:
        """Whether it reads the current token and nothing else: no position, no looking back."""
        other = Position | Key | Count | Average | Pick
        return not any(isinstance(part, other) for part in self._parts())

    def _parts(self) -> list[Expression]:
        whole = [line.expression for line in self.lines] + [_value(o) for o in self.outputs]
        return [part for one in whole for part in children(one, deep=True)]


RESERVED = frozenset(
    {
        *("token", "position", "key", "true", "false", "none", "if", "else", "in", "where"),
        *("count", "average", *get_args(Which), "table", "allow", "next", "score"),
    }
)


def kind_of(
    expression: Expression, known: dict[str, Kind], problems: Problems | None = None
) -> Kind:
    """Whether an expression's value is a token, a number or a truth.

    Args:
        expression: Without mistakes, unless ``problems`` collects them.
        known: Name → kind of its line; ``token`` and ``position`` too.
        problems: Told of every part of the wrong kind.
    """
    found = _checked(expression, known, problems or Problems("expression"))
    return found or "number"


def _value(output: Output) -> Expression:
    return output.condition if isinstance(output, Allow) else output.value


def _check_outputs(outputs: tuple[Output, ...], known: dict[str, Kind], problems: Problems) -> None:
    kinds = {type(output) for output in outputs}
    rule = "must be allow lines, or score lines, or one next line"
    got = ", ".join(sorted(kind.__name__.lower() for kind in kinds)) or "none"
    single = len(kinds) == 1 and (kinds != {Next} or len(outputs) == 1)
    problems.need(single, "outputs", rule, got, "write what follows")
    named = [output.token for output in outputs if not isinstance(output, Next)]
    twice = sorted({token for token in named if named.count(token) > 1})
    problems.need(not twice, "token", "must have one output", ", ".join(twice), "join the lines")
    wanted: dict[type, Kind] = {Allow: "boolean", Next: "token", Score: "number"}
    for output in outputs:
        _need(_value(output), wanted[type(output)], known, problems, inside=False)


def _need(
    part: Expression, kind: Kind, known: dict[str, Kind], problems: Problems, *, inside: bool
) -> None:
    found = _checked(part, known, problems, inside=inside)
    rule = f"must be a {'truth' if kind == 'boolean' else kind}"
    problems.need(found in (kind, None), type(part).__name__, rule, found, "mend the line")


def _checked(
    part: Expression, known: dict[str, Kind], problems: Problems, *, inside: bool = False
) -> Kind | None:
    """The kind of an expression, mistakes told; None where it cannot be said."""
    match part:
        case Token() | Literal_() | Nothing():
            return "token"
        case Position() | Number():
            return "number"
        case Boolean():
            return "boolean"
        case Name(name) | Key(name):
            rule, advice = "must be an earlier line", "define it on an earlier line"
            problems.need(name in known, "name", rule, name, advice)
            placed = inside or isinstance(part, Name)
            rule = "must stand in a condition or in the value of count, average, first, last, …"
            advice = "write it without key. for the value at this position"
            problems.need(placed, "key", rule, f"key.{name}", advice)
            return known.get(name)
        case Not(of):
            _need(of, "boolean", known, problems, inside=inside)
            return "boolean"
        case And(left, right) | Or(left, right):
            for side in (left, right):
                _need(side, "boolean", known, problems, inside=inside)
            return "boolean"
        case In(value, _):
            _need(value, "token", known, problems, inside=inside)
            return "boolean"
        case Compare(_, left, right):
            kinds = {_checked(side, known, problems, inside=inside) for side in (left, right)}
            rule = "must compare values of one kind"
            problems.need(len(kinds - {None}) <= 1, "comparison", rule, kinds, "mend the line")
            return "boolean"
        case Arithmetic(_, left, right):
            _need(right, "number", known, problems, inside=inside)
            return _checked(left, known, problems, inside=inside)
        case Choice(then, condition, other):
            _need(condition, "boolean", known, problems, inside=inside)
            kind = _checked(then, known, problems, inside=inside)
            _need(other, kind or "number", known, problems, inside=inside)
            return kind
    return _checked_looking(part, known, problems)


def _checked_looking(part: Expression, known: dict[str, Kind], problems: Problems) -> Kind | None:
    match part:
        case Count(where):
            _need(where, "boolean", known, problems, inside=True)
            return "number"
        case Average(value, where):
            _need(value, "number", known, problems, inside=True)
            _need(where, "boolean", known, problems, inside=True)
            return "number"
        case Pick(_, value, where):
            _need(where, "boolean", known, problems, inside=True)
            return _checked(value, known, problems, inside=True)
        case Table(arguments, entries, default):
            for argument in arguments:
                _need(argument, "token", known, problems, inside=False)
            widths = {len(texts) for texts, _ in entries}
            good = widths <= {len(arguments)}
            problems.need(good, "table", "must have an entry a combination", widths, "mend it")
            return _checked(default, known, problems)
    raise TypeError(f"{type(part).__name__} is no part of the language")
