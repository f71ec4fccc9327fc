"""The syntax tree of programs: values that every position has, and what they decide.

*Programs that count* (C-RASP, `depth` §3.1) are the part of the language that proofs speak of:

    φ ::= true | "token" | predicate | name | !φ | φ && φ | φ || φ | t ⋈ t
    t ::= k | name | # φ | #[guard] φ | #> φ | t + t | t − t | k * t | min | max | t if φ else t

``# φ`` at position i is the number of positions j ≤ i where φ holds. The last line is the answer.

*Programs that decide* have outputs after their lines, and may look back in any way:

    value ::= token | position | "text" | number | true | false | none | name
            | value + value | value - value | value * value | value % value
            | value == value (!= < <= > >=) | value in {"a", "b"} | !value | value && value | value
            || value | value if value else value | table(value, …) {"a" "b": value, …, else: value}
            | count(condition) | average(value where condition)
            | first(value where condition) | last(…) | least(…) | greatest(…)
            | commonest(value where condition) | rarest(…)
            | # φ | #[guard] φ | min(value, value) | max(value, value)
    condition ::= a value that may also speak of the earlier position: key.token, key.position,
    key.NAME

A looking-back expression ranges over all positions j up to and including the current one; inside
it ``key.x`` is the value of x at j and a plain ``x`` is the value here. ``first`` and ``last`` pick
by position, ``least`` and ``greatest`` by the order of the values, ``commonest`` and ``rarest`` by
how many of the positions have the value (of equally many the least); where no position satisfies
the condition the result is ``none``. Rows that are decided on begin with BOS: ``# φ`` and imported
predicates speak of the string after it.

Outputs are either ``allow "a" if condition`` (one line a token; tokens without a line are never
allowed), or ``next = value`` (the one token that follows), or ``score "a" = number`` (the token of
the largest score follows).

Trees are immutable and compare by structure. A tree says nothing about what it costs
(:mod:`interp.program.analysis` tells the depth), nor which component of a model computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from interp.errors import Problems, need
from interp.program.predicates import Predicate

Relation = Literal["==", "!=", "<=", ">=", "<", ">"]
Operator = Literal["+", "-", "*", "%"]
Which = Literal["first", "last", "least", "greatest", "commonest", "rarest"]
Kind = Literal["token", "number", "boolean"]


@dataclass(frozen=True)
class Expression:
    """A value that every position has."""


@dataclass(frozen=True)
class Formula(Expression):
    """An expression that is true or false at every position."""


@dataclass(frozen=True)
class Term(Expression):
    """An expression that, in a program that counts (C-RASP), has an integer value at every
    position."""


@dataclass(frozen=True)
class Truth(Formula):
    """The Boolean constant ``true`` or ``false``."""

    value: bool


@dataclass(frozen=True)
class Constant(Term):
    """An integer constant."""

    value: int


@dataclass(frozen=True)
class Token(Expression):
    """``token``: the token at this position."""


@dataclass(frozen=True)
class Position(Expression):
    """``position``: how many positions come before this one."""


@dataclass(frozen=True)
class Literal_(Expression):  # noqa: N801
    """``"text"``: one token of the vocabulary.

    Raises:
        ArgumentError: for a token that the text form cannot quote.
    """

    text: str

    def __post_init__(self) -> None:
        _check_token("Literal_", "text", self.text)


@dataclass(frozen=True)
class Nothing(Expression):
    """``none``: the value of a search that found no position."""


@dataclass(frozen=True)
class Symbol(Formula):
    """The formula ``"token"``, which is true where the token is that one.

    Raises:
        ArgumentError: for a token that the text form cannot quote.
    """

    token: str

    def __post_init__(self) -> None:
        _check_token("Symbol", "token", self.token)


@dataclass(frozen=True)
class Holds(Formula):
    """The formula of an imported predicate of one position."""

    predicate: str


@dataclass(frozen=True)
class Name(Expression):
    """The value of an earlier line."""

    name: str


@dataclass(frozen=True)
class FormulaName(Name, Formula):
    """A reference to an earlier line that is a formula."""


@dataclass(frozen=True)
class TermName(Name, Term):
    """A reference to an earlier line that is a term."""


@dataclass(frozen=True)
class Key(Expression):
    """``key.NAME``: a value at the earlier position that a condition is about.

    Attributes:
        name: ``token``, ``position``, or the name of an earlier line.
    """

    name: str


@dataclass(frozen=True)
class Not(Formula):
    """The negation of a formula, ``!φ``."""

    of: Expression


@dataclass(frozen=True)
class And(Formula):
    """The conjunction of two formulas, ``φ && φ``."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Or(Formula):
    """The disjunction of two formulas, ``φ || φ``."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Comparison(Formula):
    """A comparison of two values: ``left relation right``.

    Tokens are ordered: first those that are not numbers, in the order of the vocabulary, then
    those that are numbers, by value.

    Attributes:
        relation: ``==``, ``!=``, ``<=``, ``>=``, ``<`` or ``>``.
        left, right: The expressions that are compared.

    Raises:
        ArgumentError: for an unknown relation.
    """

    relation: Relation
    left: Expression
    right: Expression

    def __post_init__(self) -> None:
        known = get_args(Relation)
        rule = "must be one of " + " ".join(known)
        need("Comparison", self.relation in known, "relation", rule, self.relation, "pick one")


@dataclass(frozen=True)
class In(Formula):
    """``value in {"a", "b"}``."""

    value: Expression
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Operation(Term):
    """A sum, difference, product or remainder of ``left`` and ``right``.

    If ``left`` is a token that writes a number, such as "3", adding or subtracting an integer gives
    the token that writes the result. In a program without outputs (C-RASP), the left factor of a
    product must be an integer constant.
    """

    operator: Operator
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Smaller(Term):
    """The smaller of two terms, ``min(left, right)``."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Larger(Term):
    """The larger of two terms, ``max(left, right)``."""

    left: Expression
    right: Expression


@dataclass(frozen=True)
class Choice(Term):
    """A choice between two values: ``then if condition else other``."""

    then: Expression
    condition: Expression
    other: Expression


@dataclass(frozen=True)
class Table(Expression):
    """A lookup table from tokens to constants, for a function that no formula was found for.

    Attributes:
        arguments: The tokens that the table depends on.
        entries: (texts of the arguments, a constant), each combination once.
        default: The value for combinations that are not listed.
    """

    arguments: tuple[Expression, ...]
    entries: tuple[tuple[tuple[str, ...], Expression], ...]
    default: Expression


@dataclass(frozen=True)
class Count(Term):
    """The number of positions that satisfy ``of``, from the first to this one or from this to the
    last.

    Attributes:
        of: The formula that is counted.
        guard: An imported binary predicate: only j with guard(i, j) are counted.
        future: Whether to count j ≥ i instead of j ≤ i.

    Raises:
        ArgumentError: for a guarded count of the future, which the language does not have.
    """

    of: Expression
    guard: str | None = None
    future: bool = False

    def __post_init__(self) -> None:
        good = self.guard is None or not self.future
        need("Count", good, "guard", "counts the past only", self.guard, "drop guard or future")


@dataclass(frozen=True)
class CountWhere(Expression):
    """``count(condition)``: how many positions up to and including this one satisfy a condition,
    which may compare the earlier position with this one."""

    where: Expression


@dataclass(frozen=True)
class Average(Expression):
    """``average(value where condition)``: the mean of a number over positions; 0 if there are
    none."""

    value: Expression
    where: Expression


@dataclass(frozen=True)
class Pick(Expression):
    """``last(value where condition)`` and its variants: the value at one of the positions.

    Attributes:
        which: ``first``, ``last``, ``least``, ``greatest``, ``commonest`` or ``rarest``.
        value: The value at the earlier position.
        where: The condition that the earlier position must satisfy.
    """

    which: Which
    value: Expression
    where: Expression


@dataclass(frozen=True)
class Assignment:
    """One line of a program: ``name = expression``."""

    name: str
    expression: Expression


@dataclass(frozen=True)
class Allow:
    """``allow "token" if condition``: the token may follow if the condition holds."""

    token: str
    condition: Expression


@dataclass(frozen=True)
class Next:
    """``next = value``: the value is the token that follows."""

    value: Expression


@dataclass(frozen=True)
class Score:
    """``score "token" = number``: the token with the largest number follows."""

    token: str
    value: Expression


Output = Allow | Next | Score

RESERVED = frozenset(
    {
        *("token", "position", "key", "true", "false", "none", "if", "else", "in", "where"),
        *("count", "average", *get_args(Which), "table", "allow", "next", "score"),
    }
)
"""Words of the language. No line of a program that makes decisions may have one of them as its
name."""
_COUNTING = (
    *(Truth, Constant, Symbol, Holds, Name, Not, And, Or, Comparison),
    *(Operation, Smaller, Larger, Choice, Count),
)


@dataclass(frozen=True)
class Program:
    """A program: its lines in order, and its outputs.

    Attributes:
        lines: The lines; a name is defined once, before every line that uses it.
        outputs: The outputs, all of one kind; ``next`` occurs once, and each token once. Empty for
            a program that counts, whose last line is the answer.
        imports: The predicates that the lines may use.

    Raises:
        ArgumentError: naming everything that breaks these rules; each expression whose parts are of
            the wrong kind (a token where a Boolean is needed, ``key`` outside a condition); and, in
            a program without outputs, each that is not part of C-RASP.
    """

    lines: tuple[Assignment, ...]
    outputs: tuple[Output, ...] = ()
    imports: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        problems = Problems("Program")
        known: dict[str, Kind] = {"token": "token", "position": "number"} if self.outputs else {}
        arities = {p.name: p.arity for p in self.imports}
        checked = _Checked(known, problems, arities)
        taken = {*arities, *(RESERVED if self.outputs else ())}
        for line in self.lines:
            rule = f"must be given once{', and be no word of the language' * bool(self.outputs)}"
            free = line.name not in known and line.name not in taken
            problems.need(free, "name", rule, line.name, "choose another name")
            known[line.name] = checked.kind(line.expression) or "number"
        if self.outputs:
            checked.outputs(self.outputs)
        else:
            self._check_counting(problems)
        problems.raise_if_any()

    def __getitem__(self, name: str) -> Expression:
        """Return the expression on the line of this name.

        Raises:
            ArgumentError: if no line has that name.
        """
        found = [line.expression for line in self.lines if line.name == name]
        names = ", ".join(line.name for line in self.lines)
        need("Program", bool(found), "name", f"must be one of {names}", name, "pick one")
        return found[0]

    @property
    def objective(self) -> str:
        """The form of the program's outputs.

        It is ``sets`` if the outputs say for each token whether it may come next, and
        ``next token`` if one next token is chosen. A program without outputs has no form, and
        IndexError is raised.
        """
        return "sets" if isinstance(self.outputs[0], Allow) else "next token"

    @property
    def size(self) -> int:
        """Number of lines, outputs included."""
        return len(self.lines) + len(self.outputs)

    @property
    def nodes(self) -> int:
        """Number of expressions in the program, a measure of its size."""
        return len(self.parts())

    @property
    def unnamed(self) -> int:
        """Number of lookup tables, for which no formula was found."""
        return sum(isinstance(part, Table) for part in self.parts())

    @property
    def pointwise(self) -> bool:
        """Whether the program reads nothing but the token at the current position.

        False if any expression reads the position's index or looks at other positions, as counts
        and averages do.
        """
        other = Position | Key | Holds | Count | CountWhere | Average | Pick
        return not any(isinstance(part, other) for part in self.parts())

    def parts(self) -> list[Expression]:
        """Return every expression of the lines and outputs, with all expressions inside of them."""
        whole = [line.expression for line in self.lines] + [value_of(o) for o in self.outputs]
        return [part for one in whole for part in children(one, deep=True)]

    def deciding(self, yes: str, no: str) -> Program:
        """Return the same program in the form that predicts tokens, for rows that begin with BOS.

        Args:
            yes: The token that follows where this program's answer is true.
            no: The token that follows where it is false.
        """
        lines = [Assignment(line.name, _in_rows(line.expression)) for line in self.lines]
        choice = Choice(Literal_(yes), rebuilt(self.lines[-1].expression, _plain), Literal_(no))
        return Program(tuple(lines[:-1]), (Next(choice),), self.imports)

    def _check_counting(self, problems: Problems) -> None:
        """Refuse a program without outputs that is not C-RASP; its last line is then the answer."""
        lines = len(self.lines)
        problems.need(lines > 0, "lines", "must be at least one", lines, "write NAME = EXPRESSION")
        for part in self.parts():
            found, rule = type(part).__name__, "must be a part of C-RASP in a program that counts"
            problems.need(isinstance(part, _COUNTING), "expression", rule, found, "add an output")
            if isinstance(part, Operation):
                scaled = part.operator == "*" and isinstance(part.left, Constant)
                good = part.operator in ("+", "-") or scaled
                rule = "must be a sum, a difference, or a product with an integer on its left"
                problems.need(good, "expression", rule, part.operator, "write k * term")


def value_of(output: Output) -> Expression:
    """Return the expression of an output line: the condition of an ``allow`` line, otherwise its
    value."""
    return output.condition if isinstance(output, Allow) else output.value


def with_value(output: Output, value: Expression) -> Output:
    """Return the output line with another condition or value."""
    if isinstance(output, Allow):
        return replace(output, condition=value)
    return replace(output, value=value)


def children(expression: Expression, *, deep: bool = False) -> Iterator[Expression]:
    """Yield the expressions directly inside one; with ``deep``, itself and all expressions
    inside."""
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


def rebuilt(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the expression with ``change`` applied to every part, inner ones first.

    Tables are changed as a whole; the expressions inside of them stay as they are.
    """
    inside = {
        field.name: rebuilt(value, change)
        for field in fields(expression)
        if isinstance(value := getattr(expression, field.name), Expression)
    }
    whole = isinstance(expression, Table) or not inside
    return change(expression if whole else replace(expression, **inside))


def replace_part(part: Expression, old: Expression, new: Expression) -> Expression:
    """Return the expression with a part replaced wherever it occurs."""
    return rebuilt(part, lambda inner: new if inner == old else inner)


def kind_of(expression: Expression, known: dict[str, Kind]) -> Kind:
    """Return the type of a valid expression's value: ``token``, ``number`` or ``boolean``.

    Args:
        expression: An expression without errors, whose names are all in ``known``.
        known: Name → type of the line with this name; ``token`` and ``position`` included.
    """
    return _Checked(known, Problems("expression")).kind(expression) or "number"


def _in_rows(line: Expression) -> Expression:
    """Convert a line of a program that counts to the language of programs that decide.

    There, a quoted token is a value and not the formula that the token is this one.
    """
    if isinstance(line, Symbol):
        return Comparison("==", Token(), Literal_(line.token))
    return rebuilt(line, _plain)


def _plain(part: Expression) -> Expression:
    """Convert a reference to an earlier line to the form that programs that decide use."""
    return Name(part.name) if isinstance(part, FormulaName | TermName) else part


def _check_token(subject: str, argument: str, text: str) -> None:
    rule = "must not hold a quote or a line break"
    need(subject, not set(text) & set('"\r\n'), argument, rule, text, "rename the token")


@dataclass(frozen=True)
class _Checked:
    """Checks the kinds of expressions and records mistakes.

    Attributes:
        known: Name → kind of its line.
        problems: The collection that mistakes are added to.
        arities: Imported predicate → number of positions; None if this is not checked.
    """

    known: dict[str, Kind]
    problems: Problems
    arities: dict[str, int] | None = None

    def outputs(self, outputs: tuple[Output, ...]) -> None:
        """Check that outputs go together, and that the value of each has the right kind."""
        kinds = {type(output) for output in outputs}
        need = self.problems.need
        rule = "must be allow lines, or score lines, or one next line"
        got = ", ".join(sorted(kind.__name__.lower() for kind in kinds)) or "none"
        single = len(kinds) == 1 and (kinds != {Next} or len(outputs) == 1)
        need(single, "outputs", rule, got, "write what follows")
        named = [output.token for output in outputs if not isinstance(output, Next)]
        twice = sorted({token for token in named if named.count(token) > 1})
        need(not twice, "token", "must have one output", ", ".join(twice), "join the lines")
        wanted: dict[type, Kind] = {Allow: "boolean", Next: "token", Score: "number"}
        for output in outputs:
            self.need(value_of(output), wanted[type(output)])

    def need(self, part: Expression, kind: Kind, *, inside: bool = False) -> Kind:
        """Record a mistake if a part is not of the required kind; return this kind."""
        found = self.kind(part, inside=inside)
        rule = f"must be a {'truth' if kind == 'boolean' else kind}"
        good = found in (kind, None)
        self.problems.need(good, type(part).__name__, rule, found, "mend the line")
        return kind

    def kind(self, part: Expression, *, inside: bool = False) -> Kind | None:
        """Return the kind of an expression; None if it cannot be determined.

        Args:
            part: The expression.
            inside: Whether it is in a condition, where ``key`` may refer to the earlier position.
        """
        match part:
            case Token() | Literal_() | Nothing():
                return "token"
            case Position() | Constant():
                return "number"
            case Truth() | Symbol():
                return "boolean"
            case Holds(predicate):
                self._need_import(predicate, 1)
                return "boolean"
            case Name(name) | Key(name):
                return self._name_kind(part, name, inside)
            case Not(of):
                return self.need(of, "boolean", inside=inside)
            case And(left, right) | Or(left, right):
                self.need(left, "boolean", inside=inside)
                return self.need(right, "boolean", inside=inside)
            case In(value, _):
                self.need(value, "token", inside=inside)
                return "boolean"
            case Comparison(_, left, right):
                kinds = {self.kind(side, inside=inside) for side in (left, right)}
                rule = "must compare values of one kind"
                self.problems.need(
                    len(kinds - {None}) <= 1, "comparison", rule, kinds, "mend the line"
                )
                return "boolean"
            case Operation(_, left, right):
                self.need(right, "number", inside=inside)
                return self.kind(left, inside=inside)
            case Smaller(left, right) | Larger(left, right):
                self.need(left, "number", inside=inside)
                return self.need(right, "number", inside=inside)
            case Choice(then, condition, other):
                self.need(condition, "boolean", inside=inside)
                kind = self.kind(then, inside=inside)
                self.need(other, kind or "number", inside=inside)
                return kind
        return self._looking_kind(part)

    def _name_kind(self, part: Expression, name: str, inside: bool) -> Kind | None:
        found, wanted = self.known.get(name), "line"
        good = found is not None
        if isinstance(part, FormulaName | TermName):
            formula = isinstance(part, FormulaName)
            wanted, good = (
                "formula" if formula else "term",
                good and (found == "boolean") == formula,
            )
        rule, advice = f"must be an earlier {wanted}", "define it on an earlier line"
        self.problems.need(good, "name", rule, name, advice)
        rule = "must stand in a condition or in the value of count, average, first, last, …"
        advice = "write it without key. for the value at this position"
        placed = inside or isinstance(part, Name)
        self.problems.need(placed, "key", rule, f"key.{name}", advice)
        return found

    def _need_import(self, predicate: str, arity: int) -> None:
        if self.arities is not None:
            rule = f"must be imported and take {arity} position{'s' * (arity - 1)}"
            good = self.arities.get(predicate) == arity
            self.problems.need(good, "predicate", rule, predicate, "import it")

    def _looking_kind(self, part: Expression) -> Kind | None:
        match part:
            case Count(of, guard, _):
                self.need(of, "boolean")
                if guard is not None:
                    self._need_import(guard, 2)
                return "number"
            case CountWhere(where):
                self.need(where, "boolean", inside=True)
                return "number"
            case Average(value, where):
                self.need(where, "boolean", inside=True)
                return self.need(value, "number", inside=True)
            case Pick(_, value, where):
                self.need(where, "boolean", inside=True)
                return self.kind(value, inside=True)
            case Table(arguments, entries, default):
                for argument in arguments:
                    self.need(argument, "token")
                widths = {len(texts) for texts, _ in entries}
                rule = "must have an entry a combination"
                good = widths <= {len(arguments)}
                self.problems.need(good, "table", rule, widths, "mend it")
                return self.kind(default)
        raise TypeError(f"{type(part).__name__} is no part of the language")
