"""By how much the model does worse at each position when something in it is changed, and by how
much the attention of a later head falls: who is needed, and who feeds whom.

    nats       loss without − loss with it
    variance   |out′ − out|² / the mean squared distance of the output from its mean
    decisions  1 where an answer that was right is wrong, −1 where one that was wrong is right
    fall       share of the attention on a key set, at queries that have such keys, row by row:
               as it is − with the change

Changes are edits of the engine (:mod:`interp.run.edits`), named by what is taken away: a head's
attention to some keys, or the head. A head may lose nothing here because another does the same
work; :mod:`probes.roles.groups` looks for those. A fall says that the change reaches the head's
scores. It does not say by which input of the head, and a head whose attention does not fall may be
fed by several that stand in for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.run import Array, Change, DropKeys, KeepKeys, Loss, Mean, Metric, Site, Swap
from interp.run.edits import Edits
from interp.run.metrics import Places, Wrong
from probes.roles.change import RowMean, over_rows
from probes.roles.evidence import Evidence, Keys, KeysOf, Place
from probes.roles.views import later


@dataclass(frozen=True)
class _LossAndChange(Metric):
    """The loss, how far the output is from the clean one, and of tokens whether the answer is
    wrong, of one run."""

    @property
    def compares(self) -> bool:
        return True

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:
        metrics = [Loss(), Change()] + [Wrong()] * (not places.targets.is_floating_point())
        return torch.stack([one.at(output, places, clean).cpu() for one in metrics], -1)


Rows = Sequence[int] | None
"""Which rows of a kind; None for all."""

Own = Mapping[Place, KeysOf | None]
"""Each head's own keys, of a class that differs from head to head."""

_ALIKE: Own = MappingProxyType({})


class LossRises:
    """Changes of the output of the model of some evidence, position by position.

    Args:
        evidence: The evidence, with its model and rows.
        decisions: Whether to count wrong answers, of token targets, in place of the profile's unit.
    """

    def __init__(self, evidence: Evidence, *, decisions: bool = False) -> None:
        self.evidence, self._decisions = evidence, decisions
        self._nats = evidence.profile.unit == "nats"
        self._spreads: dict[tuple[str, str], tuple[Tensor, float]] = {}

    # What is changed.

    def away(self, kind: str, places: Sequence[Place], name: str = "", own: Own = _ALIKE) -> Edits:
        """The edits that take some heads' attention to a key set away, all at once; without a name
        of a key set the heads themselves are replaced by their means.

        Args:
            kind: The kind of rows.
            places: Layer and number of each head.
            name: The name of the key set.
            own: Keys of that name where they differ from head to head.
        """
        if not name:
            return tuple(Mean(self.evidence.site(place)) for place in places)
        array = self.evidence.key_array
        return tuple(DropKeys(_pattern(p), array(kind, name, own.get(p))) for p in places)

    def only(self, kind: str, places: Sequence[Place], name: str, own: Own = _ALIKE) -> Edits:
        """The edits that leave some heads nothing but their attention to a key set, at the queries
        that have such keys."""
        array = self.evidence.key_array
        return tuple(KeepKeys(_pattern(p), array(kind, name, own.get(p))) for p in places)

    def only_keys(self, place: Place, keys: Tensor) -> Edits:
        """The edits that leave one head nothing but its attention to these keys, ``[row, query,
        key]``, at the queries that have such keys."""
        return (KeepKeys(_pattern(place), Array(keys)),)

    def exchange_edits(self, kind: str, places: Sequence[Place]) -> Edits:
        """The edits that replace what some heads write on a row by what they write on the next."""
        count = len(self.evidence.batch(kind))
        others = tuple((row - 1) % count for row in range(count))
        return tuple(Swap(self.evidence.site(place), others) for place in places)

    def average_edits(self, places: Sequence[Place]) -> Edits:
        """The edits that replace some heads' attention by its mean over rows."""
        return tuple(Mean(_pattern(place)) for place in places)

    def level_edits(self, place: Place) -> Edits:
        """The edit with which a head writes its mean over rows and positions."""
        return (Mean(self.evidence.site(place), level=True),)

    # What is lost.

    def at(
        self, kind: str, edits: Edits, rows: Rows = None, *, everywhere: bool = False
    ) -> Float[Tensor, "row pos"]:
        """How much worse the model does at each scored position under some edits.

        Args:
            kind: The kind of rows.
            edits: The edits, made together.
            rows: Numbers of the rows; all by default.
            everywhere: Score each position that has a target, not only the rows' scored ones.

        Returns:
            At each scored position, the rise of the loss if the profile's unit is nats; else the
            squared change of the output as a share of its variance or, where decisions are
            counted, the rise of wrong answers. 0 at other positions.
        """
        run = self.evidence.run(kind, everywhere=everywhere)
        if self._nats:
            return run.rise(edits, Loss(), rows)
        found = run.rise(edits, _LossAndChange(), rows)
        if self._decisions:
            return found[..., 2]
        return found[..., 1] / (self.spread(kind, "all")[1] or 1.0)

    def losses(self, kind: str, edits: Edits) -> Float[Tensor, "row pos"]:
        """By how much the loss rises at each scored position of rows of one kind."""
        run = self.evidence.run(kind)
        return run.rise(edits) if self._nats else run.rise(edits, _LossAndChange())[..., 0]

    def spread(self, kind: str, over: str) -> tuple[Bool[Tensor, "row pos"], float]:
        """Where the output counts, and its mean squared distance there from its mean.

        Args:
            kind: The kind of rows.
            over: ``all`` scored positions, or the ``later`` ones.
        """
        if (kind, over) not in self._spreads:
            scored = self.evidence.batch(kind).mask
            late = scored & later(scored.shape[1])
            scored = late if over == "later" and bool(late.any()) else scored
            pieces = [
                output[scored[places.rows, places.positions]].double()
                for places, output in self.evidence.run(kind).outputs()
            ]
            count = max(int(scored.sum()), 1)
            mean = sum(piece.sum(0) for piece in pieces) / count
            total = sum(float((piece - mean).square().sum()) for piece in pieces)
            self._spreads[kind, over] = scored, total / count
        return self._spreads[kind, over]


def _pattern(place: Place) -> Site:
    layer, head = place
    return Site(layer, "pattern", head)


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
