"""By how much the model does worse at each position under edits, and by how much the attention of a
later head falls: which heads are needed, and which heads feed others.

    nats       loss with the edits − clean loss
    variance   |out′ − out|² / the mean squared distance of the output from its mean
    decisions  1 where a right answer becomes wrong, −1 where a wrong one becomes right
    fall       the share of attention on a key set, at queries that have such keys, row by row:
               clean − with the edits

Edits are those of :mod:`interp.run.edits`; here they are made from what is ablated: a head's
attention to some keys, or the head. Ablating a head may cost nothing because another head does the
same work; :mod:`probes.roles.groups` looks for such heads. A fall says that the edit reaches the
head's attention scores. It does not say through which input of the head, and a head whose attention
does not fall may be fed by several heads that stand in for each other.
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
    """Three metrics of one run: the loss, the squared distance of the output from the clean output
    and, for token targets, whether the answer is wrong."""

    @property
    def compares(self) -> bool:
        return True

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:
        metrics = [Loss(), Change()] + [Wrong()] * (not places.targets.is_floating_point())
        return torch.stack([one.at(output, places, clean).cpu() for one in metrics], -1)


Rows = Sequence[int] | None
"""Row numbers within a kind of rows; None for all rows."""

Own = Mapping[Place, KeysOf | None]
"""Head → the function that gives its own keys, for a key set that differs from head to head."""

_ALIKE: Own = MappingProxyType({})


class LossRises:
    """Measures, position by position, how much worse a model does under edits.

    Args:
        evidence: The evidence, with its model and rows.
        decisions: Whether to count wrong answers, for token targets, instead of using the profile's
            unit.
    """

    def __init__(self, evidence: Evidence, *, decisions: bool = False) -> None:
        self.evidence, self._decisions = evidence, decisions
        self._nats = evidence.profile.unit == "nats"
        self._spreads: dict[tuple[str, str], tuple[Tensor, float]] = {}

    # What is changed.

    def away(self, kind: str, places: Sequence[Place], name: str = "", own: Own = _ALIKE) -> Edits:
        """Return the edits that remove some heads' attention to a key set, all at once.

        Without the name of a key set they replace the heads' outputs by their means over rows.

        Args:
            kind: The kind of rows.
            places: Layer and number of each head.
            name: The name of the key set.
            own: The heads' own keys, if each head has its own.
        """
        if not name:
            return tuple(Mean(self.evidence.site(place)) for place in places)
        array = self.evidence.key_array
        return tuple(DropKeys(_pattern(p), array(kind, name, own.get(p))) for p in places)

    def only(self, kind: str, places: Sequence[Place], name: str, own: Own = _ALIKE) -> Edits:
        """Return the edits that leave some heads only their attention to a key set.

        Queries without such keys keep their attention.

        Args:
            kind: The kind of rows.
            places: Layer and number of each head.
            name: The name of the key set.
            own: The heads' own keys, if each head has its own.
        """
        array = self.evidence.key_array
        return tuple(KeepKeys(_pattern(p), array(kind, name, own.get(p))) for p in places)

    def only_keys(self, place: Place, keys: Tensor) -> Edits:
        """Return the edits that leave one head only its attention to some keys.

        Args:
            place: Layer and number of the head.
            keys: True for the keys, ``[row, query, key]``; queries without keys keep their
                attention.
        """
        return (KeepKeys(_pattern(place), Array(keys)),)

    def exchange_edits(self, kind: str, places: Sequence[Place]) -> Edits:
        """Return the edits that replace some heads' outputs on each row by those on the row before
        it.

        Args:
            kind: The kind of rows.
            places: Layer and number of each head.
        """
        count = len(self.evidence.batch(kind))
        others = tuple((row - 1) % count for row in range(count))
        return tuple(Swap(self.evidence.site(place), others) for place in places)

    def average_edits(self, places: Sequence[Place]) -> Edits:
        """Return the edits that replace some heads' attention patterns by their means over rows."""
        return tuple(Mean(_pattern(place)) for place in places)

    def level_edits(self, place: Place) -> Edits:
        """Return the edit that replaces a head's output by its mean over rows and positions."""
        return (Mean(self.evidence.site(place), level=True),)

    # What is lost.

    def at(
        self, kind: str, edits: Edits, rows: Rows = None, *, everywhere: bool = False
    ) -> Float[Tensor, "row pos"]:
        """Return how much worse the model does at each scored position under some edits.

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
        """Return by how much the loss rises under edits at each scored position of rows of one
        kind."""
        run = self.evidence.run(kind)
        return run.rise(edits) if self._nats else run.rise(edits, _LossAndChange())[..., 0]

    def spread(self, kind: str, over: str) -> tuple[Bool[Tensor, "row pos"], float]:
        """Return the positions at which the output counts, and the output's variance there.

        Args:
            kind: The kind of rows.
            over: ``all`` scored positions, or the ``later`` ones.

        Returns:
            True at the positions that count; and the mean squared distance of the output from its
            mean.
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
    """Measures how much heads' attention to key sets falls under edits; each measurement is kept.

    Args:
        rises: Makes the edits, and has the evidence.
    """

    def __init__(self, rises: LossRises) -> None:
        self._rises, self.evidence = rises, rises.evidence
        self._known: dict[tuple[str, str, Edits], dict[Place, Float[np.ndarray, " row"]]] = {}

    def without(self, place: Place, name: str, others: Sequence[Place], lost: str) -> RowMean:
        """Return how much a head's attention to a key set falls when other heads lose another
        attention.

        All the other heads lose their attention to the key set ``lost`` together. What they wrote
        because of it is then gone, and everything else that they write stays. Heads that are not in
        earlier layers make no difference.

        Args:
            place: Layer and number of the head.
            name: The key set whose share of attention may fall.
            others: Layer and number of the other heads.
            lost: The key set that the others lose their attention to.

        Returns:
            The mean over rows of the share of attention before minus after.
        """
        kind = self.evidence.profile.rows[name]
        edits = self._rises.away(kind, others, lost)
        before, after = (self._shares(kind, name, some)[place] for some in ((), edits))
        return over_rows(before - after)

    def with_edits(self, place: Place, kind: str, keys: Keys, edits: Edits) -> RowMean:
        """Return how much a head's attention to some keys falls under edits.

        Args:
            place: Layer and number of the head.
            kind: The kind of rows.
            keys: True for the keys, ``[row, query, key]``.
            edits: The edits, made at an earlier site.

        Returns:
            The mean over rows of the share of attention before minus after.
        """
        site, run = Site(place[0], "pattern", place[1]), self.evidence.run(kind)
        patterns = (run.with_(*some).at([site])[site] for some in ((), edits))
        before, after = (_share(pattern.cpu(), keys) for pattern in patterns)
        return over_rows((before - after).numpy())

    def _shares(self, kind: str, name: str, edits: Edits) -> dict[Place, Float[np.ndarray, " row"]]:
        """Return the share of attention on a key set under edits, row by row, for each head of
        later layers.

        All these heads are measured together, because that costs no more than measuring one.
        """
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
    """Return each row's share of attention on some keys, averaged over the queries that have such
    keys."""
    pattern, weight = pattern.double(), keys.any(-1).double()
    share = (pattern * keys).sum(-1) / pattern.sum(-1).clamp_min(1e-12)
    return (share * weight).sum(1) / weight.sum(1).clamp_min(1)
