"""Centres of gravity by segments (`coupling` §4.3, readable attention).

A row is a run of segments; each ends in a prediction token, at which the centre of gravity of the
segment's points is asked for. Every token carries its segment's label. One layer of attention
scores pairs of tokens and cannot count markers between them, so without labels a segment would not
be visible to it; labels are shuffled in every row, so that they say nothing about positions.

The attention that solves it spreads evenly over the points of the query's segment. Any weights with
the same centre do as well where a segment has many points, so compare weights, not errors alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["SegmentCentres"]


@dataclass(frozen=True)
class SegmentCentres:
    """The centre of gravity of each segment's points, asked for at the end of the segment.

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
