"""Detect heads that compare tokens by what earlier heads fetched of them.

    keys        K  the earlier head fetched the query's token there:  token fetched at j = x_i
                Q  the key holds what it fetched for the query:       x_j = token fetched at i
    behaviour   of queries that have such keys, attention goes to these, beyond what goes to those
                of other rows
    cause       that attention falls when the head's keys (K) or queries (Q) lack what the earlier
                head wrote, and not as much when they lack what the loudest others wrote; without
                that attention the loss rises

Keys with the query's own token are left out: they can be found by the embedding. So are, of K,
keys after such a token: a head that finds those by what a previous-token head wrote is an induction
head, which is the same mechanism and has that name. A query of Q counts if the token that was
fetched stands elsewhere, too: a head that attends to the same place by itself compares nothing.

Which earlier head, and whether K or Q, is chosen on every second row and judged on the others. Of
several that fetch the same, those count whose writes the attention falls without. A comparison in
which both sides were fetched is not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.roles.change import Change, over_rows
from probes.roles.decision import Found, Test, holds
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Keys, KeysOf, Place
from probes.roles.examined import of_head
from probes.roles.fetched import Fetching
from probes.roles.reading import Input, Reading, missed, names

_ROLE, _KEYS = "composed-equality", "matched"
_FEWEST = 8
"""The least number of rows with queries that have keys."""

_TRIED = 6
"""The most earlier heads that fetch the same and are tried one by one."""

Shares = Float[Tensor, "row head writer"]


@dataclass(frozen=True)
class Match:
    """The earlier heads whose fetched token a head may compare, and how much it attends so.

    Attributes:
        place: The head that compares.
        read_as: ``k`` or ``q``.
        writers: The earlier heads, the best one first.
        share: Share of attention on each one's keys, row by row; NaN where no query has any.
        beyond: How much of it is beyond that on other rows' keys.
    """

    place: Place
    read_as: Input
    writers: tuple[Place, ...]
    share: Float[Tensor, "row writer"]
    beyond: Float[Tensor, "row writer"]


def closest(evidence: Evidence, fetching: Fetching, layer: int) -> Iterator[Match]:
    """For each head of a layer, the earlier heads whose keys it attends to most, on every second
    row."""
    heads = [place for place in evidence.heads if place[0] == layer]
    earlier = [place for place in evidence.heads if place[0] < layer]
    if not earlier:
        return
    kinds: tuple[Input, Input] = ("k", "q")
    tried = [(side, writer) for side in kinds for writer in earlier]
    found = [_attended(evidence, fetching, layer, side) for side in kinds]
    own, other = (torch.cat([some[i] for some in found], dim=2) for i in range(2))
    excess = (own - other)[::2].nanmean(0).nan_to_num(-1.0)
    for place in heads:
        mine = excess[place[1]]
        order = mine.argsort(descending=True).tolist()
        side, most = tried[order[0]][0], float(mine[order[0]])
        least = min(most, most / 2)
        alike = [at for at in order if tried[at][0] == side and float(mine[at]) >= least][:_TRIED]
        share = own[:, place[1], alike]
        writers = tuple(tried[at][1] for at in alike)
        yield Match(place, side, writers, share, share - other[:, place[1], alike])


def _attended(
    evidence: Evidence, fetching: Fetching, layer: int, side: Input
) -> tuple[Shares, Shares]:
    """Every head's share of attention on the keys of every earlier head, and on those of the next
    row."""
    kind = evidence.profile.rows[_KEYS]
    pattern = torch.cat(evidence.patterns(kind, layer)).float()
    pattern = pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-12)
    counted, inputs = evidence.views[kind].counted, evidence.batch(kind).inputs
    owns, others = [], []
    for before in sorted({one for one, _ in evidence.heads if one < layer}):
        fetched = fetching.by(kind, before)
        keys, asked = _keys(inputs, fetched.tokens, fetched.places, side)
        asked = (asked & counted[:, None]).float()
        weight = keys * (asked / asked.sum(-1, keepdim=True))[..., None]  # NaN: none is asked
        owns.append(torch.einsum("rhij,reij->rhe", pattern, weight))
        others.append(torch.einsum("rhij,reij->rhe", pattern, weight.roll(1, 0)))
    return torch.cat(owns, dim=2), torch.cat(others, dim=2)


def _keys(
    inputs: Int[Tensor, "row pos"], tokens: Tensor, places: Tensor, side: Input
) -> tuple[Bool[Tensor, "row head query key"], Bool[Tensor, "row head query"]]:
    """The keys of every head that fetches, and the queries that have such keys."""
    size = inputs.shape[1]
    earlier = torch.ones(size, size, dtype=torch.bool).tril()
    same = inputs[:, :, None] == inputs[:, None, :]
    if side == "k":
        after = torch.nn.functional.pad(same, (1, 0))[..., :-1]
        keys = tokens[:, :, None, :] == inputs[:, None, :, None]
        keys &= (earlier & ~same & ~after)[:, None]
        return keys, keys.any(-1)
    keys = tokens[..., None] == inputs[:, None, None, :]
    keys &= (earlier & ~same)[:, None]
    elsewhere = torch.arange(size) != places[..., None]
    return keys, (keys & elsewhere).any(-1)


def _keys_of(fetching: Fetching, kind: str, writer: Place, side: Input) -> Keys:
    """The keys that hold what one earlier head fetched, or where it fetched the query's token."""
    fetched, head = fetching.by(kind, writer[0]), slice(writer[1], writer[1] + 1)
    inputs = fetching.evidence.batch(kind).inputs
    keys, asked = _keys(inputs, fetched.tokens[:, head], fetched.places[:, head], side)
    return (keys & asked[..., None])[:, 0]


def matched(effects: Effects, reading: Reading, fetching: Fetching, one: Match) -> Found:
    """The tests of one head, and of what it reads where its attention is as it should be."""
    evidence = effects.evidence
    tests, cause, target = _behaviour(evidence, one, one.writers[0]), list[Test](), ""
    keys: KeysOf | None = None
    if holds(tests):
        fallen = _Fallen(reading, fetching, one)
        writers = fallen.read()
        tests = _behaviour(evidence, one, writers[0])
        target = f"{one.read_as.upper()} {names(writers)}"
        keys = partial(_keys_of, fetching, writer=writers[0], side=one.read_as)
        cause = fallen.tests(writers)
        cause += effects.without_keys(one.place, _KEYS, keys) if holds(cause) else []
    return of_head(one.place, _ROLE, tests, cause, target=target, keys=keys)


def _behaviour(evidence: Evidence, one: Match, writer: Place) -> list[Test]:
    """Attention to one earlier head's keys, on the rows that nothing was chosen on."""
    floors, at = evidence.floors, one.writers.index(writer)
    side = "where {} fetched the query's token" if one.read_as == "k" else "what {} fetched for it"
    words = f"share of attention to {side.format(names([writer]))}"
    share, beyond = one.share[1::2, at], one.beyond[1::2, at]
    kept = ~(share.isnan() | beyond.isnan())
    if int(kept.sum()) < _FEWEST:
        return [Test.too_few(words, _FEWEST, floors.share)]
    return [
        over_rows(share[kept].numpy()).test(words, floors.share, _KEYS),
        over_rows(beyond[kept].numpy()).test(
            "beyond that to other rows' such keys", floors.excess, f"{_KEYS} beyond"
        ),
    ]


class _Fallen:
    """By how much a head's attention to its keys falls without what earlier heads wrote."""

    def __init__(self, reading: Reading, fetching: Fetching, one: Match) -> None:
        self._reading, self._one = reading, one
        self._floors = reading.evidence.floors
        self._kind = reading.evidence.profile.rows[_KEYS]
        self._keys = _keys_of(fetching, self._kind, one.writers[0], one.read_as)
        self._counted = reading.evidence.views[self._kind].counted
        pattern = torch.cat(reading.evidence.patterns(self._kind, one.place[0]))[:, one.place[1]]
        self._clean = self._shares(pattern)

    def read(self) -> tuple[Place, ...]:
        """Those of the heads that fetch the same whose write is read, on every second row; all
        where none is missed by itself."""
        alone = {one: float(self._rows([one])[::2].mean()) for one in self._one.writers}
        return missed(alone, self._floors.fall)

    def tests(self, writers: Sequence[Place]) -> list[Test]:
        """The tests that the head finds its keys by what these heads wrote."""
        rows, others = self._rows(writers), self._reading.loudest(self._kind, writers)
        side = "keys" if self._one.read_as == "k" else "queries"
        words = f"without what {names(writers)} wrote in its {side} that share falls by"
        tests = [self._over(rows).test(words, self._floors.fall, "unread")]
        if others and holds(tests):
            words = f"beyond what it falls by without {names(others)} there"
            beyond = self._over(rows - self._rows(others))
            tests.append(beyond.test(words, self._floors.fall, "unread beyond"))
        return tests

    def _rows(self, writers: Sequence[Place]) -> Float[Tensor, " row"]:
        one = self._one
        pattern = self._reading.attention(self._kind, one.place, writers, one.read_as)
        return (self._clean - self._shares(pattern)).nan_to_num(0.0)

    def _over(self, rows: Float[Tensor, " row"]) -> Change:
        return over_rows(rows[1::2].numpy())

    def _shares(self, pattern: Float[Tensor, "row query key"]) -> Float[Tensor, " row"]:
        asked = (self._keys.any(-1) & self._counted).double()
        total = pattern.double().sum(-1).clamp_min(1e-12)
        share = (pattern.double() * self._keys).sum(-1) / total
        return (share * asked).sum(1) / asked.sum(1)
