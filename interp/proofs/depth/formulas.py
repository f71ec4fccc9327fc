"""The formulas and terms of one depth as a circuit over what earlier layers computed.

A number t is carried as t / (i + 1), where i counts the tokens so far and BOS is one more: then a
count is an average over the prefix, a constant c is c · avg_BOS, and

    t ≥ 0  ⇔  z = t/(i + 1) + ½ avg_BOS > 0,  and |z| ≥ 1 / 2(i + 1) ≥ 1 / 2(n + 1)
    bit = clip(2(n + 1) z + ½, 0, 1)

with n the longest input: the ramp reads at most −½ or at least 3/2, so the bit is exact while
rounding stays below ½. min(s, t) = s − relu(s − t), and a choice gates its two branches by the bit.
A guarded count is 0 or 1: relu(avg_BOS + bit − 1) turns it into the same form.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    Larger,
    Multiple,
    Not,
    Or,
    Program,
    Smaller,
    Sum,
    Term,
    TermName,
    Truth,
)
from interp.proofs.depth.circuits import Affine, Circuit

__all__ = ["FormulaCircuit", "formula_of", "term_of"]


class FormulaCircuit:
    """Builder of the circuit that computes one layer's formulas.

    Args:
        program: The program in which names are looked up.
        circuit: The circuit that is built on.
        places: Expression → coordinate that holds it when the layer runs: bits, averages, and
            guarded counts, which are 0 or 1 and are held as they are.
        unit: What a 1 is carried as: avg_BOS, or before any attention 1 itself.
        longest: The longest input n; 0 before any attention.
    """

    def __init__(
        self,
        program: Program,
        circuit: Circuit,
        places: Mapping[Expression, int],
        unit: Affine,
        longest: int,
    ) -> None:
        self.program, self.circuit, self.places = program, circuit, places
        self.unit, self.slope = unit, 2.0 * (longest + 1)
        self._signals: dict[str, Affine] = {}  # of a line, which others may read many times
        self._bounds: dict[str, float] = {}

    def bit(self, formula: Formula) -> Affine:
        """A signal that is 1 where the formula holds and 0 elsewhere."""
        if formula in self.places:
            return self.held_bit(formula)
        match formula:
            case Truth(value):
                return Affine((), float(value))
            case FormulaName(name):
                if name not in self._signals:
                    self._signals[name] = self.bit(formula_of(self.program, name))
                return self._signals[name]
            case Not(of):
                return self.bit(of) * -1.0 + 1.0
            case And(left, right):
                return self.circuit.both(self.bit(left), self.bit(right))
            case Or(left, right):
                return self.bit(Not(And(Not(left), Not(right))))
            case Comparison(relation, left, right):
                return self.compared(relation, self.number(left), self.number(right))
        raise TypeError(f"{type(formula).__name__} has no place and no circuit")

    def held_bit(self, expression: Expression) -> Affine:
        """The bit of an expression that already has a coordinate."""
        return Affine(((self.places[expression], 1.0),))

    def compared(self, relation: str, left: Affine, right: Affine) -> Affine:
        """A signal with the bit of a comparison of two numbers."""
        if relation in (">=", "<="):
            return self.at_least(left, right) if relation == ">=" else self.at_least(right, left)
        if relation in (">", "<"):
            swapped = (right, left) if relation == ">" else (left, right)
            return self.at_least(*swapped) * -1.0 + 1.0
        equal = self.circuit.both(self.at_least(left, right), self.at_least(right, left))
        return equal if relation == "==" else equal * -1.0 + 1.0

    def at_least(self, left: Affine, right: Affine) -> Affine:
        """The bit of left ≥ right."""
        z = left - right + self.unit * 0.5
        return self.circuit.step(z * self.slope + 0.5)

    def number(self, term: Term) -> Affine:
        """A signal with the term divided by i + 1."""
        if term in self.places and isinstance(term, Count) and term.guard is not None:
            return self.circuit.relu(self.unit + self.held_bit(term) - 1.0)
        if term in self.places:
            return Affine(((self.places[term], 1.0),))
        match term:
            case Constant(value):
                return self.unit * float(value)
            case TermName(name):
                if name not in self._signals:
                    self._signals[name] = self.number(term_of(self.program, name))
                return self._signals[name]
            case Sum(left, right):
                return self.number(left) + self.number(right)
            case Difference(left, right):
                return self.number(left) - self.number(right)
            case Multiple(factor, of):
                return self.number(of) * float(factor)
            case Smaller(left, right):
                first = self.number(left)
                return first - self.circuit.relu(first - self.number(right))
            case Larger(left, right):
                first = self.number(left)
                return first + self.circuit.relu(self.number(right) - first)
            case Choice(then, condition, other):
                bit = self.bit(condition)
                if_true = self.circuit.gate(self.number(then), bit, self.bound(then))
                otherwise = bit * -1.0 + 1.0
                return if_true + self.circuit.gate(self.number(other), otherwise, self.bound(other))
        raise TypeError(f"{type(term).__name__} has no place and no circuit")

    def bound(self, term: Term) -> float:
        """A bound on the size of the term divided by i + 1."""
        match term:
            case Count():
                return 1.0
            case Constant(value):
                return float(abs(value))
            case TermName(name):
                if name not in self._bounds:
                    self._bounds[name] = self.bound(term_of(self.program, name))
                return self._bounds[name]
            case Sum(left, right) | Difference(left, right):
                return self.bound(left) + self.bound(right)
            case Multiple(factor, of):
                return abs(factor) * self.bound(of)
            case Smaller(left, right) | Larger(left, right):
                return max(self.bound(left), self.bound(right))
            case Choice(then, _, other):
                return max(self.bound(then), self.bound(other))
        raise TypeError(f"{type(term).__name__} is no term")


def formula_of(program: Program, name: str) -> Formula:
    """The formula that a line's name stands for."""
    expression = program[name]
    if not isinstance(expression, Formula):
        raise TypeError(f"{name} is a number")
    return expression


def term_of(program: Program, name: str) -> Term:
    """The number (term) that a line's name stands for."""
    expression = program[name]
    if not isinstance(expression, Term):
        raise TypeError(f"{name} is a formula")
    return expression
