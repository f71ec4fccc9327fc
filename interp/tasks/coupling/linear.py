"""A linear memory kernel, with inputs in a changed order (`coupling` §4.3).

    y(t) = Σ_{s=0}^{t} ρ(s) x(t − s),   x uniform on [0, 1]

The model reads not x but a fixed transformation of it, while y is still computed from x:

    exchange   the first and the last n positions are exchanged, block for block
    mixing     x′(t) = Σ_{j<5} w_j x(t − j), w drawn uniformly from [0, 1], zero before the start

A recurrent network reads the sequence in order, so after an exchange it lacks inputs that come
later. Bidirectional attention only has to learn other positions. If a transformer does worse after
a change, it has not learned these positions; this says nothing about what it could represent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, sampler

_CHOICES = {"kernel": ("exponential", "random"), "change": ("none", "exchange", "mixing")}


@dataclass(frozen=True)
class LinearKernel:
    """A linear functional of the input's past, where the model reads the input in a changed order.

    Attributes:
        kernel: The memory kernel ρ: ``exponential`` (e^{−s}) or ``random`` (uniform on [0, 1],
            drawn from ``kernel_seed``).
        change: How the input is changed before the model reads it: ``none``, ``exchange`` or
            ``mixing``.
        length: Positions of a row.
        exchanged: Positions of each of the two blocks that change places.
        filter_length: Number of coefficients of the mixing filter.
        kernel_seed, filter_seed: Seeds of the random kernel and of the mixing filter.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    ordered: ClassVar[bool] = True
    """The answer depends on the order of the inputs."""

    kernel: str = "exponential"
    change: str = "none"
    length: int = 32
    exchanged: int = 10
    filter_length: int = 5
    kernel_seed: int = 0
    filter_seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("LinearKernel")
        for name, choices in _CHOICES.items():
            value, rule = getattr(self, name), f"must be one of {', '.join(choices)}"
            problems.need(value in choices, name, rule, value, "pick one")
        apart = self.change != "exchange" or 1 <= self.exchanged <= self.length // 2
        rule = f"must be from 1 to half the length {self.length}"
        problems.need(apart, "exchanged", rule, self.exchanged, "the two blocks may not overlap")
        for name, least in (("length", 2), ("filter_length", 1)):
            value = getattr(self, name)
            problems.need(value >= least, name, f"must be at least {least}", value, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``linear-kernel-exponential-exchange``."""
        return "-".join(["linear-kernel", self.kernel, *[self.change] * (self.change != "none")])

    def weights(self) -> Float64[Tensor, " lag"]:
        """Return the kernel's values ρ(0) … ρ(length − 1)."""
        if self.kernel == "exponential":
            return torch.exp(-torch.arange(self.length, dtype=torch.float64))
        generator = torch.Generator().manual_seed(self.kernel_seed)
        return torch.rand(self.length, generator=generator, dtype=torch.float64)

    def filter(self) -> Float64[Tensor, " tap"]:
        """Return the coefficients w_0, w_1, … of the mixing filter."""
        generator = torch.Generator().manual_seed(self.filter_seed)
        return torch.rand(self.filter_length, generator=generator, dtype=torch.float64)

    def apply_change(self, x: Float[Tensor, "batch pos"]) -> Float[Tensor, "batch pos"]:
        """Return the input as the model reads it: unchanged, with two blocks exchanged, or
        mixed."""
        if self.change == "exchange":
            n = self.exchanged
            return torch.cat((x[:, -n:], x[:, n:-n], x[:, :n]), dim=1)
        if self.change == "mixing":
            return (_toeplitz(self.filter(), self.length) @ x.double()[..., None])[..., 0].to(x)
        return x

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos, 1]``, every position scored.

        Latents: ``x`` before the change, and ``coupling`` [batch, query, key], ρ(t − s).
        """
        x = torch.rand(n, self.length, generator=torch.Generator().manual_seed(seed))
        coupling = _toeplitz(self.weights(), self.length)
        y = (coupling @ x.double()[..., None]).float()
        latents = {"x": x, "coupling": coupling.float().expand(n, -1, -1).clone()}
        scored = torch.ones(n, self.length, dtype=torch.bool)
        return Batch(self.apply_change(x)[..., None], y, scored, latents).to(device)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "linear_kernel", **asdict(self)}


def _toeplitz(weights: Float64[Tensor, " lag"], length: int) -> Float64[Tensor, "query key"]:
    """Return the lower triangular matrix with entry weights(t − s) for t ≥ s."""
    matrix = torch.zeros(length, length, dtype=torch.float64)
    for lag, weight in enumerate(weights[:length]):
        matrix.diagonal(-lag).fill_(weight)
    return matrix
