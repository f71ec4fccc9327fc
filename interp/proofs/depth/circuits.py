"""Pointwise circuits of ReLUs and signs, laid out as the hidden layers of an FFN.

A circuit's signals are its inputs and its ReLUs; a ReLU reads any affine combination of earlier
signals, so its layer is one past the latest signal it reads. A signal that is read further on is
carried along by relu(x) = x, exactly, which holds because *every signal is at least 0*: inputs must
be, and ReLUs are. The layout spends neurons freely: it is made to be read, not to be small.

A circuit may begin with *signs* instead: a first hidden layer of pairs (z, −z), each normalised to
(sign z, −sign z) by ``pair_sign``. Sizes do not survive it, so everything after reads signs only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from interp.models.ffn import FFN

__all__ = ["Affine", "Circuit"]


@dataclass(frozen=True)
class Affine:
    """An affine combination of signals: Σ weight · signal + constant."""

    weights: tuple[tuple[int, float], ...] = ()
    constant: float = 0.0

    def __add__(self, other: Affine | float) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.weights, self.constant + other)
        weights = dict(self.weights)
        for signal, weight in other.weights:
            weights[signal] = weights.get(signal, 0.0) + weight
        kept = tuple(sorted((s, w) for s, w in weights.items() if w != 0.0))
        return Affine(kept, self.constant + other.constant)

    def __mul__(self, factor: float) -> Affine:
        kept = tuple((s, w * factor) for s, w in self.weights if factor != 0.0)
        return Affine(kept, self.constant * factor)

    def __sub__(self, other: Affine | float) -> Affine:
        return self + other * -1.0

    __rmul__ = __mul__


@dataclass
class Circuit:
    """A circuit of ReLUs over the coordinates of a residual stream.

    Attributes:
        d_model: Width of the residual stream; signal s < d_model is its coordinate s.
        relus: What each ReLU reads; ReLU r is signal d_model + r.
        outputs: Coordinate → what is added to it.
        ramps: What the steps read; their bits are exact if it is off (0, 1) by more than its error.
            Of a sign, what it reads scaled so that its margin is ½ too.
        layers: The least number of hidden layers.
    """

    d_model: int
    relus: list[Affine] = field(default_factory=list)
    outputs: dict[int, Affine] = field(default_factory=dict)
    ramps: list[Affine] = field(default_factory=list)
    layers: int = 1
    _pairs: set[int] = field(default_factory=set)
    _kept: int = 0
    _exact: set[int] = field(default_factory=set)
    _known: dict[Affine, int] = field(default_factory=dict)
    _levels: list[int] = field(default_factory=list)

    def relu(self, read: Affine) -> Affine:
        """The signal max(read, 0); the same reading gives the same signal."""
        if not read.weights:
            return Affine((), max(read.constant, 0.0))
        if read not in self._known:
            self._known[read] = self.d_model + len(self.relus)
            self._levels.append(1 + max(self._level(s) for s, _ in read.weights))
            self.relus.append(read)
        return Affine(((self._known[read], 1.0),))

    def both(self, left: Affine, right: Affine) -> Affine:
        """The conjunction (AND) of two bits."""
        return self._exactly(self.relu(left + right - 1.0))

    def step(self, v: Affine) -> Affine:
        """The clipped signal clip(v, 0, 1) = 1 − relu(1 − relu(v)), exactly 0 below 0 and 1 above
        1."""
        missing = self._exactly(self.relu(self.relu(v) * -1.0 + 1.0))
        self.ramps.append(v)
        return missing * -1.0 + 1.0

    def sign(self, z: Affine, margin: float) -> Affine:
        """The bit of z > 0, for |z| ≥ margin and z over coordinates alone."""
        if not z.weights:
            return Affine((), float(z.constant > 0))
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

    def gate(self, value: Affine, bit: Affine, bound: float) -> Affine:
        """``value`` where the bit is 1 and 0 where it is 0, for |value| ≤ bound."""
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
        """Write the circuit into the weights of an FFN with these widths."""
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
                    read = Affine(((signal, 1.0),)) if carried else self._read(signal)
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
        """A bound on the rounding error of anything that a step reads.

        A sum of K products, weights rounded too, is off by at most (K + 3) u Σ|w||x|, besides
        Σ|w| times what the signals are off; ReLUs do not enlarge errors. Inputs are at most 1.

        Args:
            unit: The unit roundoff u of the floating-point format.
            errors: Coordinate → how much it is off itself; 0 where not given.
        """
        sizes = dict.fromkeys(range(self.d_model), 1.0)
        off = dict.fromkeys(range(self.d_model), 0.0) | errors

        def error(read: Affine) -> tuple[float, float]:
            size = sum(abs(w) * sizes[s] for s, w in read.weights) + abs(read.constant)
            passed = sum(abs(w) * off[s] for s, w in read.weights)
            return size, passed + (len(read.weights) + 3) * unit * size

        for number, read in enumerate(self.relus):
            signal = self.d_model + number
            exact = signal in self._exact
            sizes[signal], off[signal] = (1.0, 0.0) if exact else error(read)
        return max((error(read)[1] for read in self.ramps), default=0.0)

    def _exactly(self, bit: Affine) -> Affine:
        """Record that a bit is exact, because it reads whole numbers or its ramp lies outside (0,
        1)."""
        self._exact |= {signal for signal, _ in bit.weights}
        return bit

    def _copies(self, signal: int) -> tuple[float, ...]:
        """A sign is made by a pair of neurons, of which the first is read."""
        return (1.0, -1.0) if signal in self._pairs else (1.0,)

    def _level(self, signal: int) -> int:
        return 0 if signal < self.d_model else self._levels[signal - self.d_model]

    def _read(self, signal: int) -> Affine:
        return self.relus[signal - self.d_model]

    def _layout(self) -> list[list[int]]:
        """The signals of each hidden layer: its ReLUs, and what later layers still read."""
        depth = self.depth
        last_use = {self._kept: depth + 1}  # so that no layer is empty
        for affine, level in self._readers(depth):
            for signal, _ in affine.weights:
                last_use[signal] = max(last_use.get(signal, 0), level)
        return [
            sorted(s for s, use in last_use.items() if self._level(s) <= layer < use)
            for layer in range(1, depth + 1)
        ]

    def _readers(self, depth: int) -> list[tuple[Affine, int]]:
        readers: list[tuple[Affine, int]] = list(zip(self.relus, self._levels, strict=True))
        return readers + [(output, depth + 1) for output in self.outputs.values()]
