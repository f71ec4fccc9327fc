"""Pointwise circuits of ReLUs and signs, laid out as the hidden layers of an FFN.

A circuit's signals are its inputs and its ReLUs. A ReLU reads any affine combination of earlier
signals, so its layer is one past the latest signal it reads. A signal that a later layer reads is
carried along by relu(x) = x. This is exact because *every signal is at least 0*: the inputs must
be, and ReLUs are. The layout uses many neurons: it is made to be read, not to be small.

A circuit may begin with *signs* instead: a first hidden layer of pairs (z, −z), each normalised to
(sign z, −sign z) by ``pair_sign``. Signs lose the size of z, so everything after reads signs only.

*Formulas and terms of one depth* become a circuit over what earlier layers computed. A number t is
carried as t / (i + 1), where i counts the tokens so far and BOS is one more: then a count is an
average over the prefix, a constant c is c · avg_BOS, and

    t ≥ 0  ⇔  z = t/(i + 1) + ½ avg_BOS > 0,  and |z| ≥ 1 / 2(i + 1) ≥ 1 / 2(n + 1)
    bit = clip(2(n + 1) z + ½, 0, 1)

with n the longest input: the ramp's argument is at most −½ or at least 3/2, so the bit is exact
while rounding stays below ½. min(s, t) = s − relu(s − t), and a choice gates its two branches by
the bit. A guarded count is 0 or 1: relu(avg_BOS + bit − 1) turns it into the same form.

*As a circuit of signs* the formulas of one depth are right at any length up to rounding:

    t ≥ 0  ⇔  z = t/(i + 1) + ½ avg_BOS > 0,   bit = ½ + ½ sign z

No slope depends on the length. But a sign loses its argument's size, so numbers cannot pass the
first hidden layer: min, max, choices and guarded counts are split into cases before it, each with a
linear number, and bits pass through as sign(bit − ½). The numbers of cases multiply: a comparison
of terms with too many of them is refused. Numbers are not written into the residual stream; a
linear one can be read from it anyway, as a combination of averages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import torch

from interp.errors import ArgumentError
from interp.models.ffn import FFN
from interp.program import syntax
from interp.program.syntax import Expression, Program


@dataclass(frozen=True)
class AffineSum:
    """An affine combination of signals: Σ weight · signal + constant."""

    weights: tuple[tuple[int, float], ...] = ()
    constant: float = 0.0

    def __add__(self, other: AffineSum | float) -> AffineSum:
        if not isinstance(other, AffineSum):
            return AffineSum(self.weights, self.constant + other)
        weights = dict(self.weights)
        for signal, weight in other.weights:
            weights[signal] = weights.get(signal, 0.0) + weight
        kept = tuple(sorted((s, w) for s, w in weights.items() if w != 0.0))
        return AffineSum(kept, self.constant + other.constant)

    def __mul__(self, factor: float) -> AffineSum:
        kept = tuple((s, w * factor) for s, w in self.weights if factor != 0.0)
        return AffineSum(kept, self.constant * factor)

    def __sub__(self, other: AffineSum | float) -> AffineSum:
        return self + other * -1.0

    __rmul__ = __mul__


@dataclass
class FfnCircuit:
    """A circuit of ReLUs over the coordinates of a residual stream.

    Attributes:
        d_model: Width of the residual stream. Signal s < d_model is its coordinate s.
        relus: The affine sum that each ReLU reads. The output of ReLU r is signal d_model + r.
        outputs: Coordinate → affine sum that the circuit adds to it.
        ramps: The arguments of all steps and signs. A step's bit is exact if the exact argument is
            outside of the interval (0, 1) by more than its error. A sign's argument is scaled so
            that its least absolute value is ½, which is the margin of steps too.
        layers: The least number of hidden layers.
    """

    d_model: int
    relus: list[AffineSum] = field(default_factory=list)
    outputs: dict[int, AffineSum] = field(default_factory=dict)
    ramps: list[AffineSum] = field(default_factory=list)
    layers: int = 1
    _pairs: set[int] = field(default_factory=set)
    _kept: int = 0
    _exact: set[int] = field(default_factory=set)
    _known: dict[AffineSum, int] = field(default_factory=dict)
    _levels: list[int] = field(default_factory=list)

    def relu(self, read: AffineSum) -> AffineSum:
        """Return the signal max(read, 0); the same sum always gives the same signal."""
        if not read.weights:
            return AffineSum((), max(read.constant, 0.0))
        if read not in self._known:
            self._known[read] = self.d_model + len(self.relus)
            self._levels.append(1 + max(self._level(s) for s, _ in read.weights))
            self.relus.append(read)
        return AffineSum(((self._known[read], 1.0),))

    def both(self, left: AffineSum, right: AffineSum) -> AffineSum:
        """Return the conjunction (AND) of two bits."""
        return self._exactly(self.relu(left + right - 1.0))

    def step(self, v: AffineSum) -> AffineSum:
        """Return the signal clip(v, 0, 1) = 1 − relu(1 − relu(v)), exactly 0 below 0 and 1 above
        1."""
        missing = self._exactly(self.relu(self.relu(v) * -1.0 + 1.0))
        self.ramps.append(v)
        return missing * -1.0 + 1.0

    def sign(self, z: AffineSum, margin: float) -> AffineSum:
        """Return the bit of z > 0, for |z| ≥ margin and z an affine sum of coordinates alone."""
        if not z.weights:
            return AffineSum((), float(z.constant > 0))
        fresh = z not in self._known
        found = self.relu(z)
        signal = found.weights[0][0]
        self._pairs.add(signal)
        self._exact.add(signal)
        bit = self._exactly(self.relu(found * 0.5 + 0.5))
        if fresh:
            self.ramps.append(z * (0.5 / margin))
            self._kept = self._kept or bit.weights[0][0]
        return bit

    def gate(self, value: AffineSum, bit: AffineSum, bound: float) -> AffineSum:
        """Return the signal that is ``value`` where the bit is 1 and 0 where it is 0, for |value| ≤
        bound."""
        closed = (bit * -1.0 + 1.0) * bound
        return self.relu(value - closed) - self.relu(value * -1.0 - closed)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons in each hidden layer."""
        return tuple(sum(len(self._copies(s)) for s in layer) for layer in self._layout())

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return max([self.layers, *self._levels])

    def write(self, ffn: FFN) -> None:
        """Write the circuit into an FFN's weights, in place.

        Entries that the circuit does not use are not touched, so they must be 0.

        Args:
            ffn: An FFN made with the hidden widths :attr:`widths`.
        """
        layout = self._layout()
        before = {signal: signal for signal in range(self.d_model)}
        with torch.no_grad():
            for number, layer in enumerate(layout):
                last = number == len(layout) - 1
                hidden: Any = ffn.hidden[number] if not last else None
                W, b = (ffn.W_in, ffn.b_in) if last else (hidden.W, hidden.b)
                neuron, here = 0, {}
                for signal in layer:
                    carried = self._level(signal) <= number
                    read = AffineSum(((signal, 1.0),)) if carried else self._read(signal)
                    here[signal] = neuron
                    for factor in self._copies(signal):
                        for source, weight in read.weights:
                            W[before[source], neuron] = factor * weight
                        b[neuron] = factor * read.constant
                        neuron += 1
                before = here
            for coordinate, output in self.outputs.items():
                for source, weight in output.weights:
                    ffn.W_out[before[source], coordinate] = weight
                ffn.b_out[coordinate] = output.constant

    def rounding(self, unit: float, errors: dict[int, float]) -> float:
        """Return a bound on the rounding error of every argument of a step or sign.

        A sum of K products with rounded weights has an error of at most (K + 3) u Σ|w||x|, besides
        Σ|w| times the signals' own errors; ReLUs do not enlarge errors. Inputs are at most 1.

        Args:
            unit: The unit roundoff u of the floating-point format.
            errors: Coordinate → its own error; 0 if it is not given.
        """
        sizes = dict.fromkeys(range(self.d_model), 1.0)
        off = dict.fromkeys(range(self.d_model), 0.0) | errors

        def error(read: AffineSum) -> tuple[float, float]:
            size = sum(abs(w) * sizes[s] for s, w in read.weights) + abs(read.constant)
            passed = sum(abs(w) * off[s] for s, w in read.weights)
            return size, passed + (len(read.weights) + 3) * unit * size

        for number, read in enumerate(self.relus):
            signal = self.d_model + number
            exact = signal in self._exact
            sizes[signal], off[signal] = (1.0, 0.0) if exact else error(read)
        return max((error(read)[1] for read in self.ramps), default=0.0)

    def _exactly(self, bit: AffineSum) -> AffineSum:
        """Record that a bit is exact, because it reads whole numbers or its ramp is outside of (0,
        1)."""
        self._exact |= {signal for signal, _ in bit.weights}
        return bit

    def _copies(self, signal: int) -> tuple[float, ...]:
        """Return the factors of a signal's neurons: a sign is a pair of neurons, of which the first
        is read."""
        return (1.0, -1.0) if signal in self._pairs else (1.0,)

    def _level(self, signal: int) -> int:
        return 0 if signal < self.d_model else self._levels[signal - self.d_model]

    def _read(self, signal: int) -> AffineSum:
        return self.relus[signal - self.d_model]

    def _layout(self) -> list[list[int]]:
        """Return the signals of each hidden layer: its ReLUs, and those that later layers still
        read."""
        depth = self.depth
        last_use = {self._kept: depth + 1}  # so that no layer is empty
        for affine, level in self._readers(depth):
            for signal, _ in affine.weights:
                last_use[signal] = max(last_use.get(signal, 0), level)
        return [
            sorted(s for s, use in last_use.items() if self._level(s) <= layer < use)
            for layer in range(1, depth + 1)
        ]

    def _readers(self, depth: int) -> list[tuple[AffineSum, int]]:
        readers: list[tuple[AffineSum, int]] = list(zip(self.relus, self._levels, strict=True))
        return readers + [(output, depth + 1) for output in self.outputs.values()]


class FormulaCircuit:
    """Builder of the circuit that computes one layer's formulas.

    Args:
        program: The program in which names are looked up.
        circuit: The circuit that is extended.
        places: Expression → coordinate that holds it when the layer runs: bits, averages, and
            guarded counts, which are 0 or 1 and are stored as they are.
        unit: The signal that represents 1: avg_BOS, or before any attention the constant 1.
        longest: The longest input n; 0 before any attention.
    """

    def __init__(
        self,
        program: Program,
        circuit: FfnCircuit,
        places: Mapping[Expression, int],
        unit: AffineSum,
        longest: int,
    ) -> None:
        self.program, self.circuit, self.places = program, circuit, places
        self.unit, self.slope = unit, 2.0 * (longest + 1)
        self._signals: dict[str, AffineSum] = {}  # of a line, which others may read many times
        self._bounds: dict[str, float] = {}

    def bit(self, formula: Expression) -> AffineSum:
        """Return a signal that is 1 where the formula holds and 0 elsewhere."""
        if formula in self.places:
            return self.held_bit(formula)
        match formula:
            case syntax.Truth(value):
                return AffineSum((), float(value))
            case syntax.FormulaName(name):
                if name not in self._signals:
                    self._signals[name] = self.bit(self.program[name])
                return self._signals[name]
            case syntax.Not(of):
                return self.bit(of) * -1.0 + 1.0
            case syntax.And(left, right):
                return self.circuit.both(self.bit(left), self.bit(right))
            case syntax.Or(left, right):
                return self.bit(syntax.Not(syntax.And(syntax.Not(left), syntax.Not(right))))
            case syntax.Comparison(relation, left, right):
                return self.comparison_bit(relation, self.number(left), self.number(right))
        raise TypeError(f"{type(formula).__name__} has no place and no circuit")

    def held_bit(self, expression: Expression) -> AffineSum:
        """Return the bit of an expression that already has a coordinate."""
        return AffineSum(((self.places[expression], 1.0),))

    def comparison_bit(self, relation: str, left: AffineSum, right: AffineSum) -> AffineSum:
        """Return an affine sum of signals that is 1 where the comparison holds and 0 elsewhere.

        Args:
            relation: ``>=``, ``<=``, ``>``, ``<``, ``==`` or ``!=``.
            left: The left number, divided by i + 1 as from :meth:`number`.
            right: The right number, likewise.
        """
        if relation in (">=", "<="):
            return self.at_least(left, right) if relation == ">=" else self.at_least(right, left)
        if relation in (">", "<"):
            swapped = (right, left) if relation == ">" else (left, right)
            return self.at_least(*swapped) * -1.0 + 1.0
        equal = self.circuit.both(self.at_least(left, right), self.at_least(right, left))
        return equal if relation == "==" else equal * -1.0 + 1.0

    def at_least(self, left: AffineSum, right: AffineSum) -> AffineSum:
        """Return the bit of left ≥ right."""
        z = left - right + self.unit * 0.5
        return self.circuit.step(z * self.slope + 0.5)

    def number(self, term: Expression) -> AffineSum:
        """Return an affine sum of signals that carries a term's value divided by i + 1.

        i is the number of tokens so far, BOS not included. Before any attention, where ``unit`` is
        1, the value is not divided.
        """
        if term in self.places and isinstance(term, syntax.Count) and term.guard is not None:
            return self.circuit.relu(self.unit + self.held_bit(term) - 1.0)
        if term in self.places:
            return AffineSum(((self.places[term], 1.0),))
        match term:
            case syntax.Constant(value):
                return self.unit * float(value)
            case syntax.TermName(name):
                if name not in self._signals:
                    self._signals[name] = self.number(self.program[name])
                return self._signals[name]
            case syntax.Operation("+", left, right):
                return self.number(left) + self.number(right)
            case syntax.Operation("-", left, right):
                return self.number(left) - self.number(right)
            case syntax.Operation("*", syntax.Constant(factor), of):
                return self.number(of) * float(factor)
            case syntax.Smaller(left, right):
                first = self.number(left)
                return first - self.circuit.relu(first - self.number(right))
            case syntax.Larger(left, right):
                first = self.number(left)
                return first + self.circuit.relu(self.number(right) - first)
            case syntax.Choice(then, condition, other):
                bit = self.bit(condition)
                if_true = self.circuit.gate(self.number(then), bit, self.bound(then))
                otherwise = bit * -1.0 + 1.0
                return if_true + self.circuit.gate(self.number(other), otherwise, self.bound(other))
        raise TypeError(f"{type(term).__name__} has no place and no circuit")

    def bound(self, term: Expression) -> float:
        """Return a bound on the absolute value of the term divided by i + 1."""
        match term:
            case syntax.Count():
                return 1.0
            case syntax.Constant(value):
                return float(abs(value))
            case syntax.TermName(name):
                if name not in self._bounds:
                    self._bounds[name] = self.bound(self.program[name])
                return self._bounds[name]
            case syntax.Operation("*", syntax.Constant(factor), of):
                return abs(factor) * self.bound(of)
            case syntax.Operation(_, left, right):
                return self.bound(left) + self.bound(right)
            case syntax.Smaller(left, right) | syntax.Larger(left, right):
                return max(self.bound(left), self.bound(right))
            case syntax.Choice(then, _, other):
                return max(self.bound(then), self.bound(other))
        raise TypeError(f"{type(term).__name__} is no term")


_MOST_CASES = 64
_ALWAYS = AffineSum((), 1.0)
Cases = list[tuple[AffineSum, AffineSum]]


class SignCircuit(FormulaCircuit):
    """A :class:`FormulaCircuit` (see there for the arguments) with signs in place of ramps."""

    @cached_property
    def _cases(self) -> dict[str, Cases]:
        """Line → its cases; a cache, because several lines may read the same one."""
        return {}

    def held_bit(self, expression: Expression) -> AffineSum:
        """Return the bit of an expression that already has a coordinate, passed through the first
        hidden layer."""
        return self.circuit.sign(AffineSum(((self.places[expression], 1.0),)) - 0.5, 0.5)

    def bit(self, formula: Expression) -> AffineSum:
        """Return an affine sum of signals that is 1 where the formula holds and 0 elsewhere.

        A comparison sums over the cases of both sides, because a sign reads linear numbers alone.
        """
        if isinstance(formula, syntax.Comparison) and formula not in self.places:
            total = AffineSum()
            for (first, left), (second, right) in self._pairs(formula.left, formula.right):
                here = self.comparison_bit(formula.relation, left, right)
                total = total + self._both(self._both(first, second), here)
            return total
        return super().bit(formula)

    def at_least(self, left: AffineSum, right: AffineSum) -> AffineSum:
        """Return the bit of left ≥ right."""
        return self.circuit.sign(left - right + self.unit * 0.5, 1 / self.slope)

    def linear(self, term: Expression) -> AffineSum | None:
        """Return the term over i + 1 if it is linear in the residual stream's coordinates,
        otherwise None."""
        cases = self.cases(term)
        return cases[0][1] if len(cases) == 1 else None

    def cases(self, term: Expression) -> Cases:
        """Split a term into cases, each a bit and a number over i + 1; exactly one bit is 1.

        Raises:
            ArgumentError: if the term splits into too many cases.
        """
        match term:
            case syntax.Constant(value):
                return [(_ALWAYS, self.unit * float(value))]
            case syntax.Count(guard=None):
                return [(_ALWAYS, AffineSum(((self.places[term], 1.0),)))]
            case syntax.Count():
                bit = self.held_bit(term)
                return [(bit, self.unit), (bit * -1.0 + 1.0, AffineSum())]
            case syntax.TermName(name):
                if name not in self._cases:
                    self._cases[name] = self.cases(self.program[name])
                return self._cases[name]
            case syntax.Operation("*", syntax.Constant(factor), of):
                return [(bit, number * float(factor)) for bit, number in self.cases(of)]
            case syntax.Operation(operator, left, right):
                sign = 1.0 if operator == "+" else -1.0
                pairs = self._pairs(left, right)
                return [(self._both(p, q), x + y * sign) for (p, x), (q, y) in pairs]
            case syntax.Smaller(left, right) | syntax.Larger(left, right):
                return self._extreme(left, right, smaller=isinstance(term, syntax.Smaller))
            case syntax.Choice(then, condition, other):
                bit = self.bit(condition)
                first = [(self._both(bit, p), x) for p, x in self.cases(then)]
                bit = bit * -1.0 + 1.0
                return first + [(self._both(bit, p), x) for p, x in self.cases(other)]
        raise TypeError(f"{type(term).__name__} is no term")

    def _extreme(self, left: Expression, right: Expression, *, smaller: bool) -> Cases:
        found: Cases = []
        for (p, x), (q, y) in self._pairs(left, right):
            both, first = self._both(p, q), self.at_least(x, y)
            first = first * -1.0 + 1.0 if smaller else first
            found.append((self._both(both, first), x))
            found.append((self._both(both, first * -1.0 + 1.0), y))
        return found

    def _pairs(
        self, left: Expression, right: Expression
    ) -> list[tuple[tuple[AffineSum, AffineSum], tuple[AffineSum, AffineSum]]]:
        pairs = list(product(self.cases(left), self.cases(right)))
        if len(pairs) > _MOST_CASES:
            raise ArgumentError(
                f"program must split into at most {_MOST_CASES} cases a comparison with "
                f"precision 'sign', got {len(pairs)}: name parts of it as formulas, or use 'ramp'"
            )
        return pairs

    def _both(self, left: AffineSum, right: AffineSum) -> AffineSum:
        if left == _ALWAYS or right == _ALWAYS:
            return right if left == _ALWAYS else left
        return self.circuit.both(left, right)
