"""Functions of ±1 as ReLUs: one clipped ramp per corner of the cube (`memory` §1.4).

    f(u) = base + Σ_c (f(c) − base) [relu(v_c) − relu(v_c − 1)],   v_c = ⟨c, u⟩ − (n − 3/2)

At a corner ⟨c, u⟩ = n, at any other it is at most n − 2: while the arguments' errors sum to less
than 1/2, the ramp of the right corner is 1 and every other one 0. Errors below the margin are
removed, not passed on. Two more neurons take away what stands in the slot that f is written to:
nothing in a basis of slots; in a turned basis the rounding of all heads reaches every slot, and a
location that is off by 10⁻² is useless to the next layer.

n arguments cost up to 2^{n+1} neurons: for tables, not for functions with structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

import torch

from interp.models.ffn import FFN
from interp.proofs.memory.rounding import read_error
from interp.tasks.memory.readouts import Readout

MARGIN = 0.5


@dataclass(frozen=True)
class CornerTable:
    """The value of f at every corner of {−1, +1}^n, as a table.

    Attributes:
        values: Corner → value of f.
    """

    values: Mapping[tuple[int, ...], float]

    @classmethod
    def of(cls, readout: Readout) -> CornerTable:
        """The table of a task's readout (Boolean or real) on arguments of ±1."""
        corners = list(product((-1, 1), repeat=readout.n))
        columns = torch.tensor(corners, dtype=torch.float32).T[:, None]
        values = readout(list(columns))[0].tolist()
        return cls(dict(zip(corners, values, strict=True)))

    @classmethod
    def of_locations(cls, lags: Sequence[int], bits: int) -> CornerTable:
        """The table of a location table g_i, whose addresses are binary numbers, first channel
        highest."""
        corners = product((-1, 1), repeat=bits)
        return cls(dict(zip(corners, map(float, lags), strict=True)))

    @property
    def n(self) -> int:
        """The number of arguments."""
        return len(next(iter(self.values)))

    @property
    def base(self) -> float:
        """The least value of f."""
        return float(min(self.values.values()))

    @property
    def span(self) -> float:
        """The difference between the largest and the least value of f."""
        return float(max(self.values.values())) - self.base

    @property
    def neurons(self) -> int:
        """The number of neurons: two per corner above the base, and two that clear the slot."""
        return 2 * len(self._steps) + 2

    @property
    def _steps(self) -> list[tuple[tuple[int, ...], float]]:
        return [(c, f - self.base) for c, f in self.values.items() if f > self.base]

    def write(self, ffn: FFN, reads: Sequence[int], slot: int, first: int) -> None:
        """Write the table into an FFN with one hidden layer, from neuron ``first`` on.

        Args:
            ffn: The FFN whose weights are written.
            reads: The coordinates of the arguments.
            slot: Coordinate that holds f afterwards, whatever it held before.
            first: The number of the first neuron that is used.
        """
        neuron = first
        for corner, step in self._steps:
            write_ramp(ffn, dict(zip(reads, corner, strict=True)), step, slot, neuron)
            neuron += 2
        for sign in (1.0, -1.0):
            ffn.W_in[slot, neuron] = sign
            ffn.W_out[neuron, slot] = -sign
            neuron += 1
        ffn.b_out[slot] = self.base

    def rounding(self, unit: float, *, width: int = 0, reach: float = 0.0) -> float:
        """A bound on the rounding error of f while errors stay under the margin:
        :func:`ramp_rounding`."""
        return ramp_rounding(self.n, self.base, self.span, unit, width=width, reach=reach)


def ramp_rounding(
    n: int, base: float, span: float, unit: float, *, width: int = 0, reach: float = 0.0
) -> float:
    """A bound on the rounding error of a value computed by ramps of ``n`` arguments.

    Two ReLUs of one linear form act, the rest are exactly 0. Each is a sum of n + 1 terms, of
    size 2n together, weighted by at most ``span``; v is at most 2.

    Args:
        n: The number of arguments.
        base: The value where every ramp is 0.
        span: The largest height of a ramp.
        unit: The unit roundoff of the floating-point format.
        width: Width of the residual stream, if the basis is a rotated one.
        reach: A bound on the residual stream's norm, in the same case.
    """
    form, clear, spread = float((n + 2) * 2 * n), 0.0, 4.0
    if width:
        form = 2 * read_error(width) * (reach * sqrt(n) + n)
        clear, spread = 2 * read_error(width) * reach, 8.0 + 2 * width
    size = abs(base) + 3 * span + reach
    return unit * (2 * span * form + clear + spread * size)


def write_ramp(ffn: FFN, corner: Mapping[int, int], step: float, slot: int, neuron: int) -> None:
    """Write two neurons that add ``step`` to ``slot`` where the coordinates stand at ``corner``."""
    coordinates, signs = list(corner), torch.tensor(list(corner.values()), dtype=ffn.W_in.dtype)
    for at, shift, sign in ((neuron, 0.0, 1.0), (neuron + 1, 1.0, -1.0)):
        ffn.W_in[coordinates, at] = signs
        ffn.b_in[at] = -(len(corner) - 1.5) - shift
        ffn.W_out[at, slot] = sign * step
