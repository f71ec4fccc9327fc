"""Averages of indexed vectors, qSA (`coupling` §4.3, readable attention).

    y(t) = (1/q) Σ_{j ∈ J(t)} z(j),   J(t) a random set of q positions

Token t carries its vector z(t), its index t and the set J(t). The attention that solves it is 1/q
on J(t), from scores β Σ_{j ∈ J(t)} 1[j = s], whose rank is the length.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["IndexedAverage"]


@dataclass(frozen=True)
class IndexedAverage:
    """At every position, the average of the q vectors whose indices the token names.

    Attributes:
        q: How many vectors are averaged.
        length: Positions of a row.
        width: Numbers in a vector, drawn uniformly from [−1, 1].

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    one_hot: ClassVar[bool] = True
    """Indices are given as one-hot codes."""

    q: int = 3
    length: int = 8
    width: int = 2

    def __post_init__(self) -> None:
        problems = Problems("IndexedAverage")
        good = 1 <= self.q <= self.length
        problems.need(good, "q", f"must be from 1 to the length {self.length}", self.q, "lower it")
        problems.need(self.width >= 1, "width", "must be at least 1", self.width, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``indexed-average-3``."""
        return f"indexed-average-{self.q}"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, width + 2 · length]``: z, the token's own index
        one-hot, and its set as zeros and ones; targets ``[batch, pos, width]``.

        Latents: ``indices`` [batch, pos, q], increasing, and ``coupling`` [batch, query, key],
        1/q on the set.
        """
        generator = torch.Generator().manual_seed(seed)
        z = 2 * torch.rand(n, self.length, self.width, generator=generator) - 1
        order = torch.rand(n, self.length, self.length, generator=generator).argsort(dim=-1)
        indices = order[..., : self.q].sort(dim=-1).values
        chosen = torch.zeros(n, self.length, self.length).scatter_(-1, indices, 1.0)
        own = torch.eye(self.length).expand(n, -1, -1)
        weights = chosen / self.q
        latents = {"indices": indices, "coupling": weights}
        scored = torch.ones(n, self.length, dtype=torch.bool)
        inputs = torch.cat((z, own, chosen), dim=-1)
        return Batch(inputs, weights @ z, scored, latents).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "indexed_average", **asdict(self)}
