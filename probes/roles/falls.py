"""How much a head's attention falls when something in front of it is changed: who feeds whom.

    fall   share of the attention on a key set, at queries that have such keys, row by row:
           as it is − with the change

A fall says that the change reaches the head's scores. It does not say by which input of the head,
and a head whose attention does not fall may be fed by several that stand in for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.run import Site
from interp.run.edits import Edits
from probes.roles.change import RowMean, over_rows
from probes.roles.evidence import Keys, Place
from probes.roles.rises import LossRises


class AttentionFalls:
    """Falls of attention in the model of some evidence, each measured once.

    Args:
        rises: The changes that are made, with the evidence.
    """

    def __init__(self, rises: LossRises) -> None:
        self._rises, self.evidence = rises, rises.evidence
        self._known: dict[tuple[str, str, Edits], dict[Place, Float[np.ndarray, " row"]]] = {}

    def without(self, place: Place, name: str, others: Sequence[Place], lost: str) -> RowMean:
        """How much a head's attention to a key set falls when earlier heads lose another attention.

        All the other heads lose their attention to the second key set together. What they wrote
        of it is then gone, and everything else that they write stays. Those that are not in earlier
        layers make no difference.
        """
        kind = self.evidence.profile.rows[name]
        edits = self._rises.away(kind, others, lost)
        before, after = (self._shares(kind, name, some)[place] for some in ((), edits))
        return over_rows(before - after)

    def with_edits(self, place: Place, kind: str, keys: Keys, edits: Edits) -> RowMean:
        """How much a head's attention to some keys, on rows of one kind, falls with some edits of
        an earlier place."""
        site, run = Site(place[0], "pattern", place[1]), self.evidence.run(kind)
        patterns = (run.with_(*some).at([site])[site] for some in ((), edits))
        before, after = (_share(pattern.cpu(), keys) for pattern in patterns)
        return over_rows((before - after).numpy())

    def _shares(self, kind: str, name: str, edits: Edits) -> dict[Place, Float[np.ndarray, " row"]]:
        """The share of each head's attention that goes to a key set, row by row, with some edits
        made; of all heads in layers behind these, whose patterns cost no more than one's."""
        if (kind, name, edits) not in self._known:
            first = min((edit.site.layer for edit in edits), default=-1)
            heads = [place for place in self.evidence.heads if place[0] > first]
            sites = [Site(layer, "pattern") for layer in sorted({layer for layer, _ in heads})]
            run, keys = self.evidence.run(kind).with_(*edits), self.evidence.keys(kind, name)
            pieces: dict[Place, list[Tensor]] = {place: [] for place in heads}
            for rows in self.evidence.blocks(kind):
                found = run.at(sites, rows)
                some = keys if len(keys) == 1 else keys[rows.start : rows.stop]
                for layer, head in heads:
                    pattern = found[Site(layer, "pattern")][:, head].cpu()
                    pieces[layer, head].append(_share(pattern, some))
            shares = {place: torch.cat(some).numpy() for place, some in pieces.items()}
            self._known[kind, name, edits] = shares
        return self._known[kind, name, edits]


def _share(pattern: Float[Tensor, "row query key"], keys: Keys) -> Float[Tensor, " row"]:
    """The share of a head's attention that goes to some keys, at queries that have such keys."""
    pattern, weight = pattern.double(), keys.any(-1).double()
    share = (pattern * keys).sum(-1) / pattern.sum(-1).clamp_min(1e-12)
    return (share * weight).sum(1) / weight.sum(1).clamp_min(1)
