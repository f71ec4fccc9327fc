"""Which token a head fetches: the one that most of its attention goes to, wherever it stands.

    token    t with the largest Σ p(i, j) over keys j that hold t, where that is at least one half
    place    the key with t that is attended to most

What a head attends to need not be what it writes, and what it writes need not be read: whether a
later head reads it is asked by taking it away (:mod:`probes.roles.reading`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from probes.roles.evidence import Evidence

_MOST = 0.5


@dataclass(frozen=True)
class Fetched:
    """What the heads of a layer fetch at every position.

    Attributes:
        tokens: The tokens; −1 where attention is on no token for the most part.
        places: The positions at which they stand.
    """

    tokens: Int[Tensor, "row head pos"]
    places: Int[Tensor, "row head pos"]


class Fetching:
    """What the heads of some evidence's model fetch, each layer looked at once.

    Args:
        evidence: The evidence, with its model and rows of tokens.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._known: dict[tuple[str, int], Fetched] = {}

    def by(self, kind: str, layer: int) -> Fetched:
        """What the heads of a layer fetch on rows of one kind."""
        if (kind, layer) not in self._known:
            inputs, start, found = self.evidence.batch(kind).inputs, 0, []
            for pattern in self.evidence.patterns(kind, layer):
                found.append(_fetched(pattern, inputs[start : start + len(pattern)]))
                start += len(pattern)
            tokens, places = (torch.cat(some) for some in zip(*found, strict=True))
            self._known[kind, layer] = Fetched(tokens, places)
        return self._known[kind, layer]


def _fetched(pattern: Tensor, inputs: Int[Tensor, "row pos"]) -> tuple[Tensor, Tensor]:
    same = (inputs[:, :, None] == inputs[:, None, :]).to(pattern)
    tokens, places = [], []
    for mine in pattern.unbind(1):
        share = mine / mine.sum(-1, keepdim=True).clamp_min(1e-12)
        most, key = (share @ same).max(-1)
        token = inputs.gather(1, key)
        there = inputs[:, None, :] == token[..., None]
        tokens.append(torch.where(most >= _MOST, token, -1))
        places.append(torch.where(there, share, -1.0).argmax(-1))
    return torch.stack(tokens, dim=1), torch.stack(places, dim=1)
