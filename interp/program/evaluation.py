"""Evaluate programs: every line's value at every position of strings or rows, and the decisions.

    # φ at i               = Σ_{j ≤ i} φ_j                  a running sum
    #> φ at i              = Σ_{j ≥ i} φ_j                  inside the string
    #[guard] φ at i        = Σ_{j ≤ i} guard(i, j) φ_j      a product with a 0/1 matrix
    count(φ) at i          = Σ_{j ≤ i} φ(i, j)
    last(v where φ) at i   = v(i, max {j ≤ i : φ(i, j)}), none if the set is empty
    commonest(v where φ)   = the value that most of the positions with φ have; the least, if several

:func:`evaluate` runs a program that counts on strings: a string is accepted if the last line holds
at its last position. Integers are exact: a program whose terms could exceed 62 bits at the batch's
length is refused. Agreement on strings that were run proves nothing about longer ones.

:func:`run` runs a program that decides on rows that begin with BOS; counts (``#``) and imported
predicates refer to the string after it. Tokens are integers into the vocabulary. They are ordered:
first tokens that are no numbers, as the vocabulary lists them, then the others by value. ``token +
1`` is the token of the next number, or none if the vocabulary lacks it. Comparisons with none are
false, except for ``== none`` and ``!= none``.

This is a slow reference implementation: looking back needs length² memory, for some rows at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from interp.errors import Problems, need
from interp.program import syntax
from interp.program.analysis import alphabet
from interp.program.predicates import Predicate, find_predicate
from interp.program.syntax import Assignment, Expression, Program, Term, children

NONE = -1
"""Token code for the value ``none``: no token."""
_NUMBER = re.compile(r"-?\d+")
_AT_ONCE = 2**23
_LARGEST = 2**62
_COMPARE = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
}
_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "%": np.mod}

Values = NDArray[Any]


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that integer codes stand for.

    Attributes:
        texts: Code → text.
    """

    texts: tuple[str, ...]

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """Text → code."""
        return {text: code for code, text in enumerate(self.texts)}

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Code → the number that the token's text is, for tokens that are numbers."""
        return {c: int(t) for c, t in enumerate(self.texts) if _NUMBER.fullmatch(t)}

    @cached_property
    def order(self) -> Int[np.ndarray, " token"]:
        """Code → the token's rank: words as they are listed, then numbers by size."""
        keys = [(c in self.numbers, self.numbers.get(c, c), c) for c in range(len(self.texts))]
        rank = np.empty(len(self.texts), dtype=np.int64)
        rank[[c for *_, c in sorted(keys)]] = np.arange(len(self.texts))
        return rank

    def shift_tokens(self, tokens: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of the numbers that are larger by ``by``; NONE if the vocabulary lacks
        one."""
        tokens, by = np.broadcast_arrays(tokens, by)
        if not self.numbers:
            return np.full(tokens.shape, NONE, dtype=np.int64)
        codes = np.array(sorted(self.numbers, key=lambda c: (self.numbers[c], -c)))
        written = np.array([self.numbers[c] for c in codes.tolist()])
        number = np.zeros(len(self.texts) + 1, dtype=np.int64)
        number[codes] = written
        wanted = number[tokens] + by
        at = np.minimum(np.searchsorted(written, wanted, side="right") - 1, len(codes) - 1)
        there = (written[at] == wanted) & np.isin(tokens, codes)
        return np.where(there, codes[at], NONE).astype(np.int64)


@dataclass(frozen=True)
class Evaluation:
    """The values of every line of a program that counts, on a batch of strings.

    Attributes:
        values: Name → ``[batch, pos]``, Boolean or int64; False or 0 past a string's end.
        lengths: The length of each string, ``[batch]``, at least 1.
        answer: The name of the last line.
    """

    values: Mapping[str, np.ndarray]
    lengths: Int[np.ndarray, " batch"]
    answer: str

    @property
    def accepted(self) -> Bool[np.ndarray, " batch"]:
        """Whether each string is accepted: the last line's value at the string's last position.

        Raises:
            ArgumentError: if the last line is a number.
        """
        last = self.values[self.answer]
        rule, advice = "must be a formula to accept or reject", "end with one, as in … >= 1"
        need("program", last.dtype == bool, "last line", rule, self.answer, advice)
        rows = np.arange(len(self.lengths))
        return np.asarray(last[rows, self.lengths - 1])


@dataclass(frozen=True)
class Decisions:
    """The outputs of a program at every position.

    Attributes:
        allowed: Whether each token may follow, ``[row, pos, token]``; None for programs that choose
            one token.
        chosen: The code of the token that follows, ``[row, pos]``, −1 for none; None for sets.
    """

    allowed: Bool[np.ndarray, "row pos token"] | None
    chosen: Int[np.ndarray, "row pos"] | None


def evaluate(program: Program, strings: Sequence[Sequence[str]]) -> Evaluation:
    """Run a program that counts on strings of tokens, of any lengths.

    Args:
        program: The program.
        strings: The strings, each at least one token; a single ``str`` is read as a sequence of
            characters.

    Raises:
        ArgumentError: if a string is empty, or numbers could grow too large.
    """
    problems = Problems("evaluate")
    for row, string in enumerate(strings):
        rule = "must have at least one token"
        problems.need(len(string) > 0, f"strings[{row}]", rule, string, "leave it out")
    problems.raise_if_any()
    tokens = alphabet(program)
    index = {token: code for code, token in enumerate(tokens)}
    lengths = np.array([len(string) for string in strings], dtype=np.int64)
    codes = np.full((len(strings), int(lengths.max(initial=0))), NONE, dtype=np.int64)
    for row, string in enumerate(strings):
        codes[row, : len(string)] = [index.get(token, NONE) for token in string]
    return evaluate_codes(program, codes, tokens, lengths)


def evaluate_codes(
    program: Program,
    codes: Int[np.ndarray, "batch pos"],
    tokens: Sequence[str],
    lengths: Int[np.ndarray, " batch"] | None = None,
    *,
    given: Mapping[str, np.ndarray] | None = None,
) -> Evaluation:
    """Run a program that counts on strings of integer codes.

    Args:
        program: The program.
        codes: ``[batch, pos]``: code c stands for ``tokens[c]``, any other number for no token.
        tokens: The token that each code stands for.
        lengths: The length of each string, ``[batch]``; None if all fill their row.
        given: Line name → values ``[batch, pos]`` to use instead of computing the line; later lines
            are computed from them.

    Raises:
        ArgumentError: if lengths are out of range, or numbers could grow too large.
    """
    batch, longest = codes.shape
    ends = np.full(batch, longest, dtype=np.int64) if lengths is None else lengths
    problems = Problems("evaluate_codes")
    good = bool(np.all((ends >= 1) & (ends <= longest)))
    rule = f"must lie in 1 … {longest}"
    problems.need(good, "lengths", rule, ends.tolist(), "leave empty strings out")
    for name, bound in _bounds(program, longest).items():
        rule = f"must stay below 2^62 at length {longest}"
        problems.need(bound < _LARGEST, name, rule, bound, "use smaller factors")
    problems.raise_if_any()
    inside = np.arange(longest)[None, :] < ends[:, None]
    run = _Evaluator(codes, Vocabulary(tuple(tokens)), program.imports, inside, start=0)
    values = {name: array * inside for name, array in run.lines(program.lines, given).items()}
    return Evaluation(values, ends, program.lines[-1].name)


def accepts(program: Program, string: Sequence[str]) -> bool:
    """Return whether the program accepts one string.

    Raises:
        ArgumentError: as :func:`evaluate`, and if the last line is a number.
    """
    return bool(evaluate(program, [string]).accepted[0])


def run(program: Program, rows: Int[np.ndarray, "row pos"], vocabulary: Vocabulary) -> Decisions:
    """Run a program that decides on rows of token codes; rows that end early are padded with −1.

    Raises:
        ArgumentError: if the vocabulary lacks a token of the program.
    """
    _check(program, vocabulary)
    size = max(1, _AT_ONCE // max(rows.shape[1] ** 2, 1))
    found = [
        _evaluate_rows(program, rows[start : start + size], vocabulary)
        for start in range(0, len(rows), size)
    ]
    if program.objective == "sets":
        empty = np.zeros((0, rows.shape[1], len(vocabulary.texts)), dtype=bool)
        return Decisions(np.concatenate(found) if found else empty, None)
    return Decisions(None, np.concatenate(found) if found else np.zeros(rows.shape, dtype=np.int64))


def line_values(
    lines: Sequence[Assignment],
    rows: Int[np.ndarray, "row pos"],
    vocabulary: Vocabulary,
) -> dict[str, Values]:
    """Return name → values ``[row, pos]``: codes of tokens, integers or Booleans; averages are
    floats."""
    size = max(1, _AT_ONCE // max(rows.shape[1] ** 2, 1))
    runs = [_Evaluator(rows[s : s + size], vocabulary) for s in range(0, max(len(rows), 1), size)]
    found = [one.lines(lines) for one in runs]
    return {line.name: np.concatenate([f[line.name] for f in found]) for line in lines}


def keys(
    lines: Sequence[Assignment],
    where: Expression,
    rows: Int[np.ndarray, "row pos"],
    vocabulary: Vocabulary,
) -> Bool[np.ndarray, "row query key"]:
    """Return the keys ``[row, query, key]`` up to and including each query that satisfy a
    condition, or that a count counts; ``#> φ`` counts keys from each query on.

    Args:
        lines: The program lines that the condition may refer to.
        where: A condition on query and key, or a count, whose counted positions are returned.
        rows: Token codes; rows that end early are padded with −1.
        vocabulary: The tokens that the codes stand for.
    """
    one = _Evaluator(rows, vocabulary)
    one.lines(lines)
    return one.chosen_keys(where)


def _check(program: Program, vocabulary: Vocabulary) -> None:
    named = {output.token for output in program.outputs if not isinstance(output, syntax.Next)}
    for part in program.parts():
        named |= {part.text} if isinstance(part, syntax.Literal_) else set()
        named |= {part.token} if isinstance(part, syntax.Symbol) else set()
        named |= set(part.tokens) if isinstance(part, syntax.In) else set()
    unknown = ", ".join(sorted(named - set(vocabulary.texts)))
    rule = "must all be in the vocabulary"
    need("program", not unknown, "tokens", rule, unknown, "give the rows that the program is for")


def _evaluate_rows(program: Program, rows: NDArray[np.int64], vocabulary: Vocabulary) -> Values:
    one = _Evaluator(rows, vocabulary, program.imports)
    one.lines(program.lines)
    if program.objective == "sets":
        allowed = np.zeros((*rows.shape, len(vocabulary.texts)), dtype=bool)
        for output in program.outputs:
            if isinstance(output, syntax.Allow):
                allowed[..., vocabulary.codes[output.token]] = one.here(output.condition)
        return allowed
    first = program.outputs[0]
    if isinstance(first, syntax.Next):
        return one.here(first.value)
    scored = [output for output in program.outputs if isinstance(output, syntax.Score)]
    scores = np.stack([one.here(output.value) for output in scored], axis=-1)
    codes = np.array([vocabulary.codes[output.token] for output in scored])
    return np.asarray(codes[scores.argmax(-1)])


class _Evaluator:
    """Evaluates lines on some strings or rows, and keeps their values.

    Args:
        rows: Token codes, ``[row, pos]``.
        vocabulary: The tokens that the codes stand for.
        imports: Predicates that are not built in.
        inside: The positions that count, ``[row, pos]``; by default those that have a token.
        start: The position at which strings begin: 1 in rows with BOS.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        vocabulary: Vocabulary,
        imports: Sequence[Predicate] = (),
        inside: NDArray[np.bool_] | None = None,
        start: int = 1,
    ) -> None:
        self.rows, self.vocabulary = rows, vocabulary
        n = rows.shape[1]
        self.inside = rows != NONE if inside is None else inside
        self.kinds: dict[str, syntax.Kind] = {"token": "token", "position": "number"}
        self.values: dict[str, Values] = {
            "token": rows,
            "position": np.broadcast_to(np.arange(n), rows.shape),
        }
        self.start, self.imports = start, {predicate.name: predicate for predicate in imports}

    @cached_property
    def visible_keys(self) -> Bool[np.ndarray, "row query key"]:
        """The positions up to and including each position that have a token."""
        n = self.rows.shape[1]
        return np.asarray(np.tril(np.ones((n, n), dtype=bool)) & self.inside[:, None, :])

    def lines(
        self, lines: Sequence[Assignment], given: Mapping[str, Values] | None = None
    ) -> dict[str, Values]:
        """Evaluate lines and return name → values; lines in ``given`` keep the given values."""
        for line in lines:
            held = (given or {}).get(line.name)
            self.values[line.name] = self.here(line.expression) if held is None else held
            self.kinds[line.name] = syntax.kind_of(line.expression, self.kinds)
        return {line.name: self.values[line.name] for line in lines}

    def here(self, expression: Expression) -> Values:
        """Return an expression's values, ``[row, pos]``."""
        return np.broadcast_to(self.value(expression, pair=False), self.rows.shape)

    def value(self, part: Expression, *, pair: bool) -> Values:
        """Return values that broadcast to ``[row, pos]``, or with ``pair`` to ``[row, query,
        key]``."""
        match part:
            case syntax.Token() | syntax.Position() | syntax.Name():
                name = part.name if isinstance(part, syntax.Name) else type(part).__name__.lower()
                return self.values[name][:, :, None] if pair else self.values[name]
            case syntax.Key(name):
                return self.values[name][:, None, :]
            case syntax.Literal_(text):
                return np.asarray(self.vocabulary.codes[text])
            case syntax.Constant(value) | syntax.Truth(value):
                return np.asarray(value)
            case syntax.Nothing():
                return np.asarray(NONE)
            case syntax.Not(of):
                return np.asarray(~self.value(of, pair=pair))
            case syntax.And(left, right):
                return np.asarray(self.value(left, pair=pair) & self.value(right, pair=pair))
            case syntax.Or(left, right):
                return np.asarray(self.value(left, pair=pair) | self.value(right, pair=pair))
            case syntax.In(value, tokens):
                codes = [self.vocabulary.codes[token] for token in tokens]
                return np.isin(self.value(value, pair=pair), codes)
            case syntax.Comparison():
                return self._compare_sides(part, pair)
            case syntax.Operation():
                return self._apply_operator(part, pair)
            case syntax.Smaller(left, right) | syntax.Larger(left, right):
                extreme = np.minimum if isinstance(part, syntax.Smaller) else np.maximum
                return np.asarray(
                    extreme(self.value(left, pair=pair), self.value(right, pair=pair))
                )
            case syntax.Choice(then, condition, other):
                return np.where(
                    self.value(condition, pair=pair),
                    self.value(then, pair=pair),
                    self.value(other, pair=pair),
                )
        found = self._context_values(part)
        return found[:, :, None] if pair else found

    def _context_values(self, part: Expression) -> Values:
        """Return the values ``[row, pos]`` of an expression that looks at other positions, or of a
        table."""
        match part:
            case syntax.Symbol(token):
                return np.asarray(self.rows == self.vocabulary.codes.get(token, NONE - 1))
            case syntax.Holds(predicate):
                held = np.zeros(self.rows.shape, dtype=bool)
                held[:, self.start :] = self._table(predicate)
                return held
            case syntax.Count():
                return self._count_values(part)
            case syntax.CountWhere(where):
                return np.asarray(self.chosen_keys(where).sum(-1))
            case syntax.Average(value, where):
                chosen = self.chosen_keys(where)
                total = (self.value(value, pair=True) * chosen).sum(-1)
                return np.asarray(total / np.maximum(chosen.sum(-1), 1))
            case syntax.Pick():
                return self._pick_value(part)
            case syntax.Table():
                return self._look_up_table(part)
        raise TypeError(f"{type(part).__name__} is no part of the language")

    def _count_values(self, count: syntax.Count) -> Int[np.ndarray, "row pos"]:
        """Return the value of ``# φ`` at every position; BOS and positions outside do not count."""
        held = self._holds_inside(count).astype(np.int64)
        if count.guard is not None:
            found = held.astype(np.float64) @ self._guarding(count.guard).T
            return np.rint(found).astype(np.int64)
        past = held.cumsum(axis=1)
        return past[:, -1:] - past + held if count.future else past

    def _holds_inside(self, count: syntax.Count) -> Bool[np.ndarray, "row pos"]:
        """Return where the formula of a count holds inside the string."""
        return np.asarray(self.here(count.of) & self.inside) & (
            np.arange(self.rows.shape[1]) >= self.start
        )

    def _table(self, name: str) -> Bool[np.ndarray, "..."]:
        """Return where a predicate holds, by positions after the start."""
        predicate = self.imports.get(name) or find_predicate(name)
        if predicate is None:
            raise ValueError(f"{name} is neither imported nor built in")
        return predicate.table(max(self.rows.shape[1] - self.start, 0))

    def _guarding(self, name: str) -> Float[np.ndarray, "query key"]:
        """Return a matrix with 1 where a guard holds between a position and one up to it, else
        0."""
        n = self.rows.shape[1]
        found = np.zeros((n, n))
        found[self.start :, self.start :] = np.tril(self._table(name))
        return found

    def chosen_keys(self, where: Expression) -> NDArray[np.bool_]:
        """Return the keys ``[row, query, key]`` that satisfy a condition or that ``# φ`` counts."""
        if isinstance(where, syntax.Count):
            guard = True if where.guard is None else self._guarding(where.guard) > 0
            n = self.rows.shape[1]
            counted = np.triu(np.ones((n, n), bool)) if where.future else self.visible_keys
            return np.asarray(self._holds_inside(where)[:, None, :] & counted & guard)
        return np.asarray(self.value(where, pair=True) & self.visible_keys)

    def _pick_value(self, part: syntax.Pick) -> Values:
        chosen = self.chosen_keys(part.where)
        value = np.broadcast_to(self.value(part.value, pair=True), chosen.shape)
        n = chosen.shape[-1]
        if part.which in ("first", "last"):
            rank = np.broadcast_to(np.arange(n), chosen.shape)
        else:
            rank = self._ranks(value, self.kind(part.value))
        if part.which in ("commonest", "rarest"):
            equals = -rank if part.which == "commonest" else rank
            rank = _times(rank, chosen) * (np.ptp(rank) + 1) + equals
        far = np.iinfo(np.int64).max
        lowest = part.which in ("first", "least", "rarest")
        masked = np.where(chosen, rank, far if lowest else -far)
        at = masked.argmin(-1) if lowest else masked.argmax(-1)
        found = np.take_along_axis(value, at[..., None], axis=-1)[..., 0]
        empty: Values = np.asarray(NONE if self.kind(part.value) == "token" else 0)
        return np.where(chosen.any(-1), found, empty).astype(value.dtype)

    def _compare_sides(self, part: syntax.Comparison, pair: bool) -> Values:
        left, right = (self.value(side, pair=pair) for side in (part.left, part.right))
        if self.kind(part.left) != "token" or part.relation in ("==", "!="):
            return np.asarray(_COMPARE[part.relation](left, right))
        known = (left != NONE) & (right != NONE)
        ranks = self._ranks(left, "token"), self._ranks(right, "token")
        return np.asarray(_COMPARE[part.relation](*ranks) & known)

    def _ranks(self, value: Values, kind: str) -> NDArray[np.int64]:
        if kind != "token":
            return value.astype(np.int64)
        return np.where(value == NONE, NONE, self.vocabulary.order[value]).astype(np.int64)

    def _apply_operator(self, part: syntax.Operation, pair: bool) -> Values:
        left, right = (self.value(side, pair=pair) for side in (part.left, part.right))
        if self.kind(part.left) == "token":
            by = np.asarray(-right if part.operator == "-" else right)  # of a number: no axes
            return self.vocabulary.shift_tokens(left, by)
        if part.operator == "%":
            right = np.where(right == 0, 1, right)
        return np.asarray(_ARITHMETIC[part.operator](left, right))

    def _look_up_table(self, table: syntax.Table) -> Values:
        arguments = [self.here(argument) for argument in table.arguments]
        found = self.here(table.default).copy()
        for texts, value in table.entries:
            codes = [self.vocabulary.codes.get(text, -2) for text in texts]
            at = np.logical_and.reduce([a == c for a, c in zip(arguments, codes, strict=True)])
            found = np.where(at, self.value(value, pair=False), found)
        return found

    def kind(self, part: Expression) -> str:
        """Return whether an expression is a ``token``, a ``number`` or a ``boolean``."""
        return syntax.kind_of(part, self.kinds)


def _times(rank: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of the chosen keys share each key's value; arbitrary for keys that are not
    chosen."""
    rank = rank - rank.min()
    size = int(rank.max()) + 1
    if (rank == rank[:, :1]).all():  # the same value from every query
        is_value = (rank[:, 0, :, None] == np.arange(size)).astype(np.float32)
        times = chosen.astype(np.float32) @ is_value
        return np.take_along_axis(times, rank, axis=-1).astype(np.int64)
    found = np.zeros(chosen.shape, dtype=np.int64)
    for code in range(size):
        has = chosen & (rank == code)
        found += has * has.sum(-1, keepdims=True)
    return found


def _bounds(program: Program, longest: int) -> dict[str, int]:
    """Return for each line a bound on the absolute value of every number in it, at any position."""
    known: dict[str, int] = {}
    bounds: dict[str, int] = {}
    for line in program.lines:
        terms = [t for t in children(line.expression, deep=True) if isinstance(t, Term)]
        bounds[line.name] = max((_size(term, known, longest) for term in terms), default=0)
        if isinstance(line.expression, Term):
            known[line.name] = _size(line.expression, known, longest)
    return bounds


def _size(term: Expression, known: Mapping[str, int], longest: int) -> int:
    match term:
        case syntax.Constant(value):
            return abs(value)
        case syntax.Name(name):
            return known[name]
        case syntax.Count():
            return longest
        case syntax.Operation("*", left, right):
            return _size(left, known, longest) * max(_size(right, known, longest), 1)
    sizes = [_size(t, known, longest) for t in children(term) if isinstance(t, Term)]
    return sum(sizes) if isinstance(term, syntax.Operation) else max(sizes)
