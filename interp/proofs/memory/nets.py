"""Lipschitz readouts of real arguments as ReLU networks (`memory` §1.2, §1.4).

    single, mean   one linear form, ⟨w, u⟩ = relu(⟨w, u⟩) − relu(−⟨w, u⟩)            exact
    maximum        max(m, u_k) = relu(m − u_k) + u_k, one hidden layer an argument   exact
    network        its own sixteen neurons                                           exact
    waves          sin between knots Δ apart: off by Δ²/8 at most, inside the knots

What is not exact is E_FFN of the theorems. Errors of the arguments are passed on, times the
readout's Lipschitz constant: nothing is snapped, because there is no margin between reals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from interp.models.ffn import FFN
from interp.proofs.memory.rounding import read_error
from interp.tasks.memory.readouts import Readout

__all__ = ["ReluNet", "readout_net"]

_KNOTS_APART = 0.1
Layer = tuple[Float64[np.ndarray, "_ _"], Float64[np.ndarray, " _"]]


@dataclass(frozen=True)
class ReluNet:
    """A ReLU network with a linear output.

    Attributes:
        hidden: (weights ``[reads, neurons]``, biases ``[neurons]``) of each hidden layer.
        out: The weights of the output, ``[neurons]``.
        bias: The bias of the output.
        error: |network − f| on the box it was made for.
    """

    hidden: tuple[Layer, ...]
    out: Float64[np.ndarray, " neurons"]
    bias: float = 0.0
    error: float = 0.0

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons in each hidden layer."""
        return tuple(len(b) for _, b in self.hidden)

    def passed_on(self, errors: Sequence[float], lipschitz: float) -> float:
        """A bound on the output's error if argument i has an error of at most ``errors[i]``.

        The Lipschitz constant's bound L ‖errors‖₂, or Σ_i errors_i S_i if that is less: with one
        hidden layer |∂f/∂u_i| is at most S_i, its positive or its negative parts summed.
        """
        whole = lipschitz * float(np.linalg.norm(errors))
        if len(self.hidden) > 1:
            return whole
        slopes = self.hidden[0][0] * self.out
        steepest = np.maximum(slopes.clip(min=0).sum(1), (-slopes).clip(min=0).sum(1))
        return min(whole, float(np.array(errors) @ steepest))

    def write(self, ffn: FFN, reads: Sequence[int], slot: int) -> None:
        """Write the network into an FFN of these widths that reads ``reads`` and adds to
        ``slot``."""
        inner: list[Any] = list(ffn.hidden)
        layers = [(layer.W, layer.b) for layer in inner] + [(ffn.W_in, ffn.b_in)]
        rows = list(reads)
        for (W, b), (weights, biases) in zip(layers, self.hidden, strict=True):
            W[rows] = torch.from_numpy(weights).to(W.dtype)
            b.copy_(torch.from_numpy(biases))
            rows = list(range(len(biases)))
        ffn.W_out[:, slot] = torch.from_numpy(self.out).to(ffn.W_out.dtype)
        ffn.b_out[slot] = self.bias

    def rounding(
        self, sizes: Sequence[float], unit: float, *, width: int = 0, reach: float = 0.0
    ) -> float:
        """A bound on the output's rounding error.

        Args:
            sizes: Bounds on the sizes of the arguments.
            unit: The unit roundoff of the floating-point format.
            width: Of the residual stream if the basis is not that of the slots.
            reach: Bound on the residual stream's norm, for the same case.
        """
        size, off = np.array(sizes, dtype=np.float64), np.zeros(len(sizes))
        for number, (weights, biases) in enumerate(self.hidden):
            absolute = np.abs(weights)
            passed = off @ absolute
            size = size @ absolute + np.abs(biases)
            off = passed + (len(weights) + 4) * unit * size
            if width and number == 0:
                off = off + read_error(width) * unit * reach * np.sqrt((weights**2).sum(0))
        out = np.abs(self.out)
        total = float(size @ out) + abs(self.bias) + reach
        return float(off @ out) + (len(self.out) + 6 + 2 * width) * unit * total


def readout_net(readout: Readout, sizes: Sequence[float]) -> ReluNet:
    """A ReLU network that computes a real readout.

    Args:
        readout: One of :data:`~interp.tasks.memory.readouts.REAL`.
        sizes: Bounds on its arguments; inside them the network's ``error`` holds.
    """
    n = readout.n
    if readout.name == "maximum":
        return _maximum(n)
    if readout.name == "network":
        weights, bias, signs = (part.double().numpy() for part in readout.neurons())
        return ReluNet(((weights, bias),), signs / len(signs))
    if readout.name == "waves":
        return _waves(readout.frequency / sqrt(n), sizes)
    form = np.full(n, 1 / n) if readout.name == "mean" else np.eye(n)[-1]
    return ReluNet(((np.stack([form, -form], axis=1), np.zeros(2)),), np.array([1.0, -1.0]))


def _maximum(n: int) -> ReluNet:
    """The maximum, one argument per layer; those still to come are carried as relu(u) and
    relu(−u)."""
    hidden: list[Layer] = []
    now = np.eye(n)
    for _ in range(max(n - 1, 1)):
        first, second, rest = now[:, 0], now[:, -1] if n == 1 else now[:, 1], now[:, 2:]
        carried = [column for u in (second, *rest.T) for column in (u, -u)]
        weights = np.stack([first - second, *carried], axis=1)
        hidden.append((weights, np.zeros(weights.shape[1])))
        pairs = (weights.shape[1] - 1) // 2
        back = np.zeros((weights.shape[1], pairs))
        back[0, 0] = 1
        for k in range(pairs):
            back[1 + 2 * k, k], back[2 + 2 * k, k] = 1, -1
        now = back
    return ReluNet(tuple(hidden), now[:, 0])


def _waves(factor: float, sizes: Sequence[float]) -> ReluNet:
    """sin(z), z = factor · Σ u, as a line that bends at every knot."""
    n, far = len(sizes), factor * sum(sizes)
    count = ceil(2 * far / _KNOTS_APART)
    knots = np.linspace(-far, far, count + 1)
    slopes = np.diff(np.sin(knots)) / np.diff(knots)
    bends = np.diff(slopes, prepend=0.0)
    weights = np.full((n, count), factor)
    apart = 2 * far / count
    return ReluNet(((weights, -knots[:-1]),), bends, float(np.sin(-far)), apart**2 / 8)
