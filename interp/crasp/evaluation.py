"""Run a program: the value of every line at every position of a batch of strings.

    # φ at i         = Σ_{j ≤ i} φ_j                       a running sum
    #> φ at i        = Σ_{j ≥ i} φ_j                       inside the string
    #[guard] φ at i  = Σ_{j ≤ i} guard(i, j) φ_j           a product with a 0/1 matrix

The string is accepted if the last line holds at its last position. Integers are exact: a program
whose terms could leave 62 bits at the batch's length is refused. A guard needs length² memory.
Agreement on strings that were run proves nothing about longer ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from interp.crasp.analysis import alphabet
from interp.crasp.syntax import (
    And,
    Choice,
    Comparison,
    Constant,
    Count,
    Difference,
    Formula,
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
    Term,
    TermName,
    Truth,
    children,
)
from interp.errors import Problems

__all__ = ["COMPARE", "Evaluation", "accepts", "evaluate", "evaluate_codes"]

COMPARE = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
}
"""Relation → how it is computed."""
_LARGEST = 2**62


@dataclass(frozen=True)
class Evaluation:
    """The values of every line on a batch of strings.

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
        problems = Problems("program")
        rule, advice = "must be a formula to accept or reject", "end with one, as in … >= 1"
        problems.need(last.dtype == bool, "last line", rule, self.answer, advice)
        problems.raise_if_any()
        rows = np.arange(len(self.lengths))
        return np.asarray(last[rows, self.lengths - 1])


def evaluate(program: Program, strings: Sequence[Sequence[str]]) -> Evaluation:
    """Run a program on strings of tokens, of any lengths.

    Args:
        program: The program.
        strings: Each at least one token; a single ``str`` is read as a sequence of characters.

    Raises:
        ArgumentError: for an empty string, or numbers that could grow too large.
    """
    problems = Problems("evaluate")
    for row, string in enumerate(strings):
        rule = "must have at least one token"
        problems.need(len(string) > 0, f"strings[{row}]", rule, string, "leave it out")
    problems.raise_if_any()
    tokens = alphabet(program)
    index = {token: code for code, token in enumerate(tokens)}
    lengths = np.array([len(string) for string in strings], dtype=np.int64)
    codes = np.full((len(strings), int(lengths.max(initial=0))), -1, dtype=np.int64)
    for row, string in enumerate(strings):
        codes[row, : len(string)] = [index.get(token, -1) for token in string]
    return evaluate_codes(program, codes, tokens, lengths)


def evaluate_codes(
    program: Program,
    codes: Int[np.ndarray, "batch pos"],
    tokens: Sequence[str],
    lengths: Int[np.ndarray, " batch"] | None = None,
    *,
    given: Mapping[str, np.ndarray] | None = None,
) -> Evaluation:
    """Run a program on strings of integers.

    Args:
        program: The program.
        codes: ``[batch, pos]``: code c stands for ``tokens[c]``, any other number for none.
        tokens: The token that each code stands for.
        lengths: ``[batch]`` where strings end early; None if none does.
        given: Lines that are not computed but have these values ``[batch, pos]``; lines after
            them follow.

    Raises:
        ArgumentError: for lengths out of range, or numbers that could grow too large.
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
    run = _Run(program, codes, tokens, ends, given or {})
    return Evaluation(run.lines(), ends, program.lines[-1].name)


def accepts(program: Program, string: Sequence[str]) -> bool:
    """Whether the program accepts one string.

    Raises:
        ArgumentError: as :func:`evaluate`, and if the last line is a number.
    """
    return bool(evaluate(program, [string]).accepted[0])


class _Run:
    """The run on one batch, with the values of the lines that were computed so far."""

    def __init__(
        self,
        program: Program,
        codes: np.ndarray,
        tokens: Sequence[str],
        lengths: np.ndarray,
        given: Mapping[str, np.ndarray],
    ) -> None:
        self.program, self.codes, self.given = program, codes, given
        self.inside = np.arange(codes.shape[1])[None, :] < lengths[:, None]
        self.index = {token: code for code, token in enumerate(tokens)}
        self.tables = {p.name: p.table(codes.shape[1]) for p in program.imports}
        self.values: dict[str, np.ndarray] = {}

    def lines(self) -> dict[str, np.ndarray]:
        """Compute every line: name → values, zero past a string's end."""
        for line in self.program.lines:
            if line.name in self.given:
                self.values[line.name] = self.given[line.name]
            elif isinstance(line.expression, Formula):
                self.values[line.name] = self.formula(line.expression) & self.inside
            elif isinstance(line.expression, Term):
                self.values[line.name] = self.term(line.expression) * self.inside
        return self.values

    def formula(self, formula: Formula) -> Bool[np.ndarray, "batch pos"]:
        """The truth value of a formula at every position, ``[batch, pos]``."""
        match formula:
            case Truth(value):
                return np.full(self.codes.shape, value)
            case Symbol(token):
                code = self.index.get(token)
                found = self.codes == code if code is not None else np.zeros(self.codes.shape, bool)
                return np.asarray(found)
            case Holds(predicate):
                return np.broadcast_to(self.tables[predicate], self.codes.shape)
            case FormulaName(name):
                return self.values[name]
            case Not(of):
                return ~self.formula(of)
            case And(left, right):
                return self.formula(left) & self.formula(right)
            case Or(left, right):
                return self.formula(left) | self.formula(right)
            case Comparison(relation, left, right):
                return np.asarray(COMPARE[relation](self.term(left), self.term(right)))
        raise TypeError(f"{type(formula).__name__} is no formula")

    def term(self, term: Term) -> Int[np.ndarray, "batch pos"]:
        """The value of a numeric term at every position, ``[batch, pos]``."""
        match term:
            case Constant(value):
                return np.full(self.codes.shape, value, dtype=np.int64)
            case TermName(name):
                return self.values[name]
            case Count():
                return self.count(term)
            case Sum(left, right):
                return self.term(left) + self.term(right)
            case Difference(left, right):
                return self.term(left) - self.term(right)
            case Multiple(factor, of):
                return factor * self.term(of)
            case Smaller(left, right):
                return np.minimum(self.term(left), self.term(right))
            case Larger(left, right):
                return np.maximum(self.term(left), self.term(right))
            case Choice(then, condition, other):
                return np.where(self.formula(condition), self.term(then), self.term(other))
        raise TypeError(f"{type(term).__name__} is no term")

    def count(self, count: Count) -> Int[np.ndarray, "batch pos"]:
        """The value of a count at every position; positions past a string's end do not count."""
        held = (self.formula(count.of) & self.inside).astype(np.int64)
        if count.guard is not None:
            seen = np.tril(self.tables[count.guard]).astype(np.float64)
            return np.rint(held.astype(np.float64) @ seen.T).astype(np.int64)
        past = held.cumsum(axis=1)
        return past[:, -1:] - past + held if count.future else past


def _bounds(program: Program, longest: int) -> dict[str, int]:
    """For each line, a bound on the size of every number on it at any position."""
    known: dict[str, int] = {}
    bounds: dict[str, int] = {}
    for line in program.lines:
        terms = [t for t in children(line.expression, deep=True) if isinstance(t, Term)]
        bounds[line.name] = max((_size(term, known, longest) for term in terms), default=0)
        if isinstance(line.expression, Term):
            known[line.name] = _size(line.expression, known, longest)
    return bounds


def _size(term: Term, known: Mapping[str, int], longest: int) -> int:
    match term:
        case Constant(value):
            return abs(value)
        case TermName(name):
            return known[name]
        case Count():
            return longest
        case Multiple(factor, of):
            return abs(factor) * max(_size(of, known, longest), 1)
    sizes = [_size(t, known, longest) for t in children(term) if isinstance(t, Term)]
    return sum(sizes) if isinstance(term, Sum | Difference) else max(sizes)
