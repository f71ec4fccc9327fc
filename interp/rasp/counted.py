"""C-RASP programs in the language of looking back: a count of C-RASP is one case of it.

    # φ            count(φ of the earlier position)
    #[predK] φ     count(key.position == position - K && φ)
    pos_modM_R     position % M == (R + 1) % M, for C-RASP counts positions after BOS

What C-RASP counts are tokens after BOS, which stands at position 0 here: conditions that could hold
there ask for ``key.position >= 1``. A count inside of a count gets a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count

from interp.crasp import syntax as crasp
from interp.errors import Problems
from interp.rasp import syntax
from interp.rasp.syntax import Assignment, Compare, Expression, Number, Program

__all__ = ["from_counting"]

_PRED = re.compile(r"pred([0-9]*)")
_MOD = re.compile(r"pos_(?:even|mod([0-9]+)(?:_([0-9]+))?)")
_OPERATORS: Mapping[type, syntax.Operator] = {crasp.Sum: "+", crasp.Difference: "-"}


def from_counting(program: crasp.Program, yes: str, no: str) -> Program:
    """The program of rows that begin with BOS which answers as a C-RASP program does after BOS.

    Args:
        program: Its last line is the answer.
        yes: Token that follows where the answer holds.
        no: Token that follows elsewhere.

    Raises:
        ArgumentError: for counts of what comes later and predicates that are not built in.
    """
    writer = _Writer(program)
    for line in program.lines[:-1]:
        writer.lines.append(Assignment(line.name, writer.here(line.expression)))
    answer = writer.here(program.lines[-1].expression)
    choice = syntax.Choice(syntax.Literal_(yes), answer, syntax.Literal_(no))
    return Program(tuple(writer.lines), (syntax.Next(choice),))


class _Writer:
    """Lines so far, and expressions of C-RASP in the other language."""

    def __init__(self, program: crasp.Program) -> None:
        self.lines: list[Assignment] = []
        self._own = {line.name: line.expression for line in program.lines}
        self._counts: dict[crasp.Count, str] = {}

    def here(self, part: crasp.Expression, *, key: bool = False) -> Expression:
        """A value at this position, or with ``key`` at the earlier one."""
        match part:
            case crasp.Truth(value):
                return syntax.Boolean(value)
            case crasp.Constant(value):
                return Number(value)
            case crasp.Symbol(token):
                return Compare("==", self._token(key), syntax.Literal_(token))
            case crasp.Holds(name):
                return self._remainder(name, key)
            case crasp.FormulaName(name) | crasp.TermName(name):
                return syntax.Key(name) if key else syntax.Name(name)
            case crasp.Not(crasp.Symbol(token)):
                return Compare("!=", self._token(key), syntax.Literal_(token))
            case crasp.Not(of):
                return syntax.Not(self.here(of, key=key))
            case crasp.Count():
                return self._named(part) if key else self._count(part)
        return self._joined(part, key)

    def _joined(self, part: crasp.Expression, key: bool) -> Expression:
        match part:
            case crasp.And(left, right):
                return syntax.And(self.here(left, key=key), self.here(right, key=key))
            case crasp.Or(left, right):
                return syntax.Or(self.here(left, key=key), self.here(right, key=key))
            case crasp.Comparison(said, left, right):
                return Compare(said, self.here(left, key=key), self.here(right, key=key))
            case crasp.Sum(left, right) | crasp.Difference(left, right):
                sides = self.here(left, key=key), self.here(right, key=key)
                return syntax.Arithmetic(_OPERATORS[type(part)], *sides)
            case crasp.Multiple(factor, of):
                return syntax.Arithmetic("*", Number(factor), self.here(of, key=key))
            case crasp.Smaller(left, right) | crasp.Larger(left, right):
                one, other = self.here(left, key=key), self.here(right, key=key)
                relation: syntax.Relation = "<=" if isinstance(part, crasp.Smaller) else ">="
                return syntax.Choice(one, Compare(relation, one, other), other)
            case crasp.Choice(then, condition, else_):
                first, asked, last = (self.here(p, key=key) for p in (then, condition, else_))
                return syntax.Choice(first, asked, last)
        raise TypeError(f"{type(part).__name__} is no part of C-RASP")

    def _count(self, part: crasp.Count) -> Expression:
        problems = Problems("from_counting")
        guard = _PRED.fullmatch(part.guard or "pred")
        problems.need(not part.future, "count", "must be of the past", "#>", "count the past")
        rule, advice = "must be pred or predN", "use a built-in guard"
        problems.need(guard is not None, "guard", rule, part.guard, advice)
        problems.raise_if_any()
        where = self.here(part.of, key=True)
        if self._at_start(part.of):
            after = Compare(">=", syntax.Key("position"), Number(1))
            where = after if where == syntax.Boolean(True) else syntax.And(after, where)
        if part.guard is not None and guard is not None:
            before = syntax.Arithmetic("-", syntax.Position(), Number(int(guard[1] or 1)))
            where = syntax.And(Compare("==", syntax.Key("position"), before), where)
        return syntax.Count(where)

    def _named(self, part: crasp.Count) -> Expression:
        """A count at the earlier position: of a line that it gets."""
        if part not in self._counts:
            counted = self._count(part)
            free = (f"count{number}" for number in count(1))
            name = next(n for n in free if n not in self._own)
            self._own[name], self._counts[part] = part, name
            self.lines.append(Assignment(name, counted))
        return syntax.Key(self._counts[part])

    def _at_start(self, part: crasp.Expression) -> bool:
        """Whether a formula could hold at BOS, where no token of C-RASP stands."""
        match part:
            case crasp.Symbol():
                return False
            case crasp.Truth(value):
                return value
            case crasp.FormulaName(name):
                return self._at_start(self._own[name])
            case crasp.And(left, right):
                return self._at_start(left) and self._at_start(right)
            case crasp.Or(left, right):
                return self._at_start(left) or self._at_start(right)
        return True

    @staticmethod
    def _token(key: bool) -> Expression:
        return syntax.Key("token") if key else syntax.Token()

    @staticmethod
    def _remainder(name: str, key: bool) -> Expression:
        found = _MOD.fullmatch(name)
        problems = Problems("from_counting")
        rule, advice = "must be pos_even or pos_modM_R", "use a built-in predicate"
        problems.need(found is not None, "predicate", rule, name, advice)
        problems.raise_if_any()
        modulus, rest = (int(found[1] or 2), int(found[2] or 0)) if found else (2, 0)
        place: Expression = syntax.Key("position") if key else syntax.Position()
        here = syntax.Arithmetic("%", place, Number(modulus))
        return Compare("==", here, Number((rest + 1) % modulus))
