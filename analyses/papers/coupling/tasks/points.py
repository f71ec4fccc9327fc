"""The nearest point of the other set (`coupling` §4.3, readable attention).

Two sets of points lie uniformly in [−1, 1]²; y(t) is the point of the other set nearest to x(t).
The attention that solves it is the nearest-neighbour graph, from scores −β|x(t) − x(s)|² over the
other set; what is constant along a row cancels, so rank 3 (2β⟨u, v⟩ − β|v|²) plus one for the sets
is enough. Between near ties a small error says little about the edge: count edges too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["NearestPoint"]


@dataclass(frozen=True)
class NearestPoint:
    """For each point, the nearest point of the other set.

    Attributes:
        first, second: How many points each set has; the first set's points come first in a row.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    first: int = 6
    second: int = 6

    def __post_init__(self) -> None:
        problems = Problems("NearestPoint")
        for name in ("first", "second"):
            value = getattr(self, name)
            problems.need(value >= 1, name, "must be at least 1", value, "a set needs a point")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``nearest-point-6-6``."""
        return f"nearest-point-{self.first}-{self.second}"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 3]``, two coordinates and the set, ±1; targets
        ``[batch, pos, 2]``, the nearest point.

        Latents: ``nearest`` [batch, pos], its position in the row, and ``coupling``
        [batch, query, key], −|x(t) − x(s)|², 0 within a set.
        """
        length = self.first + self.second
        generator = torch.Generator().manual_seed(seed)
        points = 2 * torch.rand(n, length, 2, generator=generator) - 1
        belongs = torch.where(torch.arange(length) < self.first, 1.0, -1.0)
        distance = (points[:, :, None] - points[:, None]).square().sum(-1)
        other = belongs[:, None] != belongs
        nearest = distance.masked_fill(~other, torch.inf).argmin(dim=-1)
        targets = torch.gather(points, 1, nearest[..., None].expand(-1, -1, 2))
        inputs = torch.cat((points, belongs.expand(n, -1)[..., None]), dim=-1)
        latents = {"nearest": nearest, "coupling": -distance * other}
        scored = torch.ones(n, length, dtype=torch.bool)
        return Batch(inputs, targets, scored, latents).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "nearest_point", **asdict(self)}
