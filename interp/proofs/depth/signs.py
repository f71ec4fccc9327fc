"""The formulas of one depth as a circuit of signs, which is right at any length up to rounding.

    t ≥ 0  ⇔  z = t/(i + 1) + ½ avg_BOS > 0,   bit = ½ + ½ sign z

No slope depends on the length. But a sign forgets its argument's size, so numbers cannot pass the
first hidden layer: min, max, choices and guarded counts are split into cases before it, each with
a linear number, and bits go through as sign(bit − ½). Cases multiply: a comparison of terms with
many of them is refused. Numbers are not written into the residual stream; a linear one is there
anyway, as a combination of averages.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product

from interp.crasp.syntax import (
    Choice,
    Comparison,
    Constant,
    Count,
    Difference,
    Expression,
    Formula,
    Larger,
    Multiple,
    Smaller,
    Sum,
    Term,
    TermName,
)
from interp.errors import ArgumentError
from interp.proofs.depth.circuits import Affine
from interp.proofs.depth.formulas import FormulaCircuit, term_of

__all__ = ["SignCircuit"]

_MOST_CASES = 64
_ALWAYS = Affine((), 1.0)
Cases = list[tuple[Affine, Affine]]


class SignCircuit(FormulaCircuit):
    """A :class:`FormulaCircuit` (see there for the arguments) with signs in place of ramps."""

    @cached_property
    def _cases(self) -> dict[str, Cases]:
        """Line → its cases, once found: others may read it many times."""
        return {}

    def held_bit(self, expression: Expression) -> Affine:
        """The bit of an expression that already has a coordinate, passed through the first hidden
        layer."""
        return self.circuit.sign(Affine(((self.places[expression], 1.0),)) - 0.5, 0.5)

    def bit(self, formula: Formula) -> Affine:
        """A signal that is 1 where the formula holds and 0 elsewhere."""
        if isinstance(formula, Comparison) and formula not in self.places:
            total = Affine()
            for (first, left), (second, right) in self._pairs(formula.left, formula.right):
                here = self.compared(formula.relation, left, right)
                total = total + self._both(self._both(first, second), here)
            return total
        return super().bit(formula)

    def at_least(self, left: Affine, right: Affine) -> Affine:
        """The bit of left ≥ right."""
        return self.circuit.sign(left - right + self.unit * 0.5, 1 / self.slope)

    def linear(self, term: Term) -> Affine | None:
        """The term over i + 1 where it is linear in what the residual stream holds."""
        cases = self.cases(term)
        return cases[0][1] if len(cases) == 1 else None

    def cases(self, term: Term) -> Cases:
        """A term split into cases, each a bit and a number over i + 1; exactly one bit is 1.

        Raises:
            ArgumentError: if the term splits into too many cases.
        """
        match term:
            case Constant(value):
                return [(_ALWAYS, self.unit * float(value))]
            case Count(guard=None):
                return [(_ALWAYS, Affine(((self.places[term], 1.0),)))]
            case Count():
                bit = self.held_bit(term)
                return [(bit, self.unit), (bit * -1.0 + 1.0, Affine())]
            case TermName(name):
                if name not in self._cases:
                    self._cases[name] = self.cases(term_of(self.program, name))
                return self._cases[name]
            case Multiple(factor, of):
                return [(bit, number * float(factor)) for bit, number in self.cases(of)]
            case Sum(left, right) | Difference(left, right):
                sign = 1.0 if isinstance(term, Sum) else -1.0
                pairs = self._pairs(left, right)
                return [(self._both(p, q), x + y * sign) for (p, x), (q, y) in pairs]
            case Smaller(left, right) | Larger(left, right):
                return self._extreme(left, right, smaller=isinstance(term, Smaller))
            case Choice(then, condition, other):
                bit = self.bit(condition)
                first = [(self._both(bit, p), x) for p, x in self.cases(then)]
                bit = bit * -1.0 + 1.0
                return first + [(self._both(bit, p), x) for p, x in self.cases(other)]
        raise TypeError(f"{type(term).__name__} is no term")

    def _extreme(self, left: Term, right: Term, *, smaller: bool) -> Cases:
        found: Cases = []
        for (p, x), (q, y) in self._pairs(left, right):
            both, first = self._both(p, q), self.at_least(x, y)
            first = first * -1.0 + 1.0 if smaller else first
            found.append((self._both(both, first), x))
            found.append((self._both(both, first * -1.0 + 1.0), y))
        return found

    def _pairs(
        self, left: Term, right: Term
    ) -> list[tuple[tuple[Affine, Affine], tuple[Affine, Affine]]]:
        pairs = list(product(self.cases(left), self.cases(right)))
        if len(pairs) > _MOST_CASES:
            raise ArgumentError(
                f"program must split into at most {_MOST_CASES} cases a comparison with "
                f"precision 'sign', got {len(pairs)}: name parts of it as formulas, or use 'ramp'"
            )
        return pairs

    def _both(self, left: Affine, right: Affine) -> Affine:
        if left == _ALWAYS or right == _ALWAYS:
            return right if left == _ALWAYS else left
        return self.circuit.both(left, right)
