"""Tasks whose attention can be read (`coupling` §4.3): nearest points, segments, indexed vectors.

Each has the attention that solves it as a latent. Between near ties, and where a segment has many
points, other attention does nearly as well: compare edges and weights, not errors alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812

from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["IndexedAverage", "NearestPoint", "SegmentCentres"]


@dataclass(frozen=True)
class NearestPoint:
    """For each point, the nearest point of the other set; points lie uniformly in [−1, 1]².

    The attention that solves it is the nearest-neighbour graph, from scores −β|x(t) − x(s)|² over
    the other set; what is constant along a row cancels, so rank 3 (2β⟨u, v⟩ − β|v|²) plus one for
    the sets is enough.

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


@dataclass(frozen=True)
class SegmentCentres:
    """The centre of gravity of each segment's points, asked for at the end of the segment.

    Each segment ends in a prediction token, and every token carries its segment's label: one layer
    of attention scores pairs of tokens and cannot count markers between them. Labels are shuffled
    in every row, so that they say nothing about positions. The attention that solves it spreads
    evenly over the points of the query's segment.

    Attributes:
        segments: How many segments a row has.
        length: Positions of a row; each segment takes at least one point and its prediction token.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    segments: int = 3
    length: int = 10

    def __post_init__(self) -> None:
        problems = Problems("SegmentCentres")
        problems.need(self.segments >= 1, "segments", "must be at least 1", self.segments, "raise")
        rule = f"must be at least {2 * self.segments}: a point and a token a segment"
        problems.need(self.length >= 2 * self.segments, "length", rule, self.length, "lengthen")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``segment-centres-3``."""
        return f"segment-centres-{self.segments}"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 3 + segments]``: two coordinates in [−1, 1] (0 at
        prediction tokens), 1 at prediction tokens, the label one-hot; targets ``[batch, pos, 2]``,
        scored at prediction tokens.

        Latents: ``segment`` [batch, pos], counted from 0 along the row; ``label`` [batch, pos];
        ``coupling`` [batch, query, key], the weight 1/size of each point of the query's segment.
        """
        generator = torch.Generator().manual_seed(seed)
        ends = self._ends(n, generator)
        marker = torch.zeros(n, self.length).scatter_(1, ends, 1.0)
        segment = marker.cumsum(1).long() - marker.long()
        points = 2 * torch.rand(n, self.length, 2, generator=generator) - 1
        points = points * (1 - marker)[..., None]
        together = segment[:, :, None] == segment[:, None]
        weights = together * (1 - marker)[:, None]
        weights = weights / weights.sum(-1, keepdim=True)
        shuffle = torch.rand(n, self.segments, generator=generator).argsort(dim=1)
        label = torch.gather(shuffle, 1, segment)
        code = F.one_hot(label, self.segments).float()
        inputs = torch.cat((points, marker[..., None], code), dim=-1)
        latents = {"segment": segment.float(), "label": label, "coupling": weights}
        return Batch(inputs, weights @ points, marker.bool(), latents).to(device)

    def _ends(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Positions of the prediction tokens [row, segment]: a uniform composition of the length
        into parts of at least two."""
        free = self.length - self.segments  # a part of 2 or more is a part of 1 or more, plus one
        inner = torch.rand(n, free - 1, generator=generator).argsort(dim=1)[:, : self.segments - 1]
        cuts = torch.cat((inner.sort(dim=1).values + 1, torch.full((n, 1), free)), dim=1)
        return cuts + torch.arange(self.segments)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "segment_centres", **asdict(self)}


@dataclass(frozen=True)
class IndexedAverage:
    """At every position, the average of the q vectors whose indices the token names (qSA).

    The attention that solves it is 1/q on the set J(t) of indices, from scores
    β Σ_{j ∈ J(t)} 1[j = s], whose rank is the length.

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
