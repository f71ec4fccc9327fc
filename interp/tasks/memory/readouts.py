"""Readouts: the function f of the memories, Boolean on ±1 or Lipschitz on real numbers.

Boolean (arguments ±1, held as a truth table):

    parity        the product                      majority   of an odd number of arguments
    multiplexer   x_t = +1 chooses the first of two memories, −1 the second
    table         a random truth table drawn from the seed

Real, with a bound L on |f(u) − f(v)| / ‖u − v‖₂ (n arguments):

    single    the only memory                              L = 1
    mean      Σ_i u_i / n                                  L = 1/√n
    maximum   max_i u_i                                    L = 1
    waves     sin(frequency · Σ_i u_i / √n)                L = frequency
    network   Σ_k ± relu(⟨w_k, u⟩ + b_k) / 16, ‖w_k‖ = 1   L = 1, 16 neurons drawn from the seed

L multiplies the error of the memories in the theory's bounds; it says nothing about how hard f is
to learn: ``waves`` of a high frequency is a hard readout, ``maximum`` an easy one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems

BOOLEAN = ("parity", "majority", "multiplexer", "table")
REAL = ("single", "mean", "maximum", "waves", "network")
INPUTS = ("signs", "gaussian")
_MOST_BITS = 13
_NEURONS = 16


@dataclass(frozen=True)
class Readout:
    """The function f of a memory task, named and checked.

    Attributes:
        name: One of :data:`BOOLEAN` or :data:`REAL`.
        memories: M, how many memories f reads.
        now: Whether the current input x_t is the first argument, before the memories.
        seed: Seed of the readouts ``table`` and ``network``.
        frequency: Frequency of the readout ``waves``.
    """

    name: str
    memories: int
    now: bool = True
    seed: int = 0
    frequency: float = 1.0

    @property
    def n(self) -> int:
        """The number of f's arguments: the memories and, if ``now``, the current input."""
        return self.memories + self.now

    @property
    def lipschitz(self) -> float:
        """The Lipschitz bound L of a real readout: |f(u) − f(v)| ≤ L ‖u − v‖₂."""
        bounds = {"mean": 1 / sqrt(self.n), "waves": self.frequency}
        return bounds.get(self.name, 1.0)

    def check(self, problems: Problems, allowed: Sequence[str], memories: str) -> None:
        """Record every rule that the readout breaks.

        Args:
            problems: The collection that problems are added to.
            allowed: The readouts that the task allows.
            memories: The name of the task's argument that determines the number of memories, for
                messages.
        """
        need, m = problems.need, self.memories
        rule = f"must be one of {', '.join(allowed)}"
        need(self.name in allowed, "readout", rule, self.name, "pick one")
        rule = "must make one memory for the readout single"
        need(self.name != "single" or m == 1, memories, rule, m, "drop memories, or use mean")
        rule = "must make an odd number of arguments for a majority with x_t"
        need(self.name != "majority" or self.n % 2 == 1, memories, rule, m, "add a memory")
        rule = "must make two memories for a multiplexer"
        need(self.name != "multiplexer" or m == 2, memories, rule, m, "x_t chooses between them")
        few = self.name not in BOOLEAN or self.n <= _MOST_BITS
        rule = f"must make at most {_MOST_BITS - 1} memories for a Boolean readout"
        need(few, memories, rule, m, "f is held as a truth table")
        good = isfinite(self.frequency) and self.frequency > 0
        need(good, "frequency", "must be positive and finite", self.frequency, "1.0 is smooth")

    def truth_table(self) -> dict[tuple[int, ...], int]:
        """Return the value of a Boolean f at every corner of {−1, +1}^n."""
        corners = list(product((-1, 1), repeat=self.n))
        if self.name == "table":
            generator = torch.Generator().manual_seed(self.seed)
            bits = torch.randint(2, (len(corners),), generator=generator).tolist()
            return {corner: 2 * bit - 1 for corner, bit in zip(corners, bits, strict=True)}
        return {corner: _BOOLEAN[self.name](corner) for corner in corners}

    def __call__(self, arguments: Sequence[Float[Tensor, "batch pos"]]) -> Tensor:
        """Return f at every position, ``[batch, pos]``; Boolean readouts take arguments ±1."""
        if self.name in BOOLEAN:
            return self._look_up(torch.stack(list(arguments)))
        return self._evaluate(torch.stack(list(arguments), dim=-1))

    def _look_up(self, u: Float[Tensor, "argument batch pos"]) -> Float[Tensor, "batch pos"]:
        place = 2 ** torch.arange(self.n - 1, -1, -1)
        table = torch.tensor(list(self.truth_table().values()), dtype=u.dtype)
        return table[((u > 0) * place[:, None, None]).sum(0)]

    def _evaluate(self, u: Float[Tensor, "batch pos argument"]) -> Float[Tensor, "batch pos"]:
        if self.name == "single":
            return u[..., -1]
        if self.name == "mean":
            return u.mean(-1)
        if self.name == "maximum":
            return u.amax(-1)
        if self.name == "waves":
            return torch.sin(self.frequency * u.sum(-1) / sqrt(self.n))
        weights, bias, signs = self.neurons()
        return torch.relu(u @ weights + bias) @ signs / _NEURONS

    def neurons(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the random ``network``: weights w_k ``[argument, neuron]``, biases and signs
        ``[neuron]``."""
        generator = torch.Generator().manual_seed(self.seed)
        weights = torch.randn(self.n, _NEURONS, generator=generator)
        weights, bias = weights / weights.norm(dim=0), torch.randn(_NEURONS, generator=generator)
        signs = torch.randint(2, (_NEURONS,), generator=generator) * 2.0 - 1.0
        return weights, bias, signs


def inputs_like(kind: str, n: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw independent inputs ``[n, length]``: ``signs`` are ±1, ``gaussian`` standard normal."""
    if kind == "signs":
        return torch.randint(2, (n, length), generator=generator) * 2.0 - 1.0
    return torch.randn(n, length, generator=generator)


def _parity(corner: tuple[int, ...]) -> int:
    return -1 if sum(v < 0 for v in corner) % 2 else 1


def _majority(corner: tuple[int, ...]) -> int:
    return 1 if sum(corner) > 0 else -1


def _multiplexer(corner: tuple[int, ...]) -> int:
    return corner[1] if corner[0] > 0 else corner[2]


_BOOLEAN: dict[str, Callable[[tuple[int, ...]], int]] = {
    "parity": _parity,
    "majority": _majority,
    "multiplexer": _multiplexer,
}
