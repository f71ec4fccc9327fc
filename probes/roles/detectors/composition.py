"""Detect heads that read what earlier heads wrote: in their values, their keys or their queries.

    V            what an earlier head fetched is copied: two heads act as one virtual head
    K, Q         what an earlier head fetched is compared with a token

Both are tested together, a layer at a time. The earlier heads, and whether they are read by V, K or
Q, are chosen on every second row and tested on the others. If several earlier heads fetch the same
token, those count without whose output the behaviour is lost.

**What a head fetches** is the token that gets most of its attention, summed over the positions that
hold it:

    token    t with the largest Σ p(i, j) over keys j that hold t, if that is at least one half
    place    the key with t that is attended to most

What a head attends to need not be what it writes, and what it writes need not be read by others.

**What a head reads** of what earlier heads wrote is measured by path patching: its layer is run
again without that, and only one of the head's inputs receives the difference.

    q, k   the head's attention, when its queries (or its keys) are computed from the stream
           without what the earlier heads wrote, minus its mean over rows
    v      what the head writes, when its values are computed so and its attention stays

The norm before the layer is computed anew; everything between the heads stays as it is, so that
this is the direct path from the earlier heads to the input. Attention scores that read the stream
in other ways than by queries and keys are changed for neither ``q`` nor ``k`` alone.

**Copying** (virtual-copying)

    relayed     for a head's key j: the token that an earlier head fetched there, if it is not the
                key's own
    behaviour   what the head writes, read through the final norm and the unembedding, raises the
                tokens relayed at its keys above those relayed in other rows, weighted by
                attention
    cause       that rise is gone when its values lack what the earlier head wrote, but not when
                they lack what the other heads that write most wrote; without the earlier head's
                output in its values the loss rises, and without the head as well

The later head attends to the earlier head's position, and the earlier head writes there: only
together do they move a token from its position to where it is predicted. Strength is signed:
negative if such tokens are lowered. A head that attends to the token by itself raises it as well,
but its values do not need what the earlier head wrote.

Chains of three heads are not searched for.

**Comparing** (composed-equality)

    keys        K  the earlier head fetched the query's token there:  token fetched at j = x_i
                Q  the key holds what it fetched for the query:       x_j = token fetched at i
    behaviour   at queries that have such keys, attention goes to them, more than to the keys
                that other rows give
    cause       that attention falls when the head's keys (K) or queries (Q) lack what the earlier
                head wrote, and not as much when they lack what the other heads that write most
                wrote; without that attention the loss rises

Keys with the query's own token are left out, because they can be found by the embedding. For K,
keys after such a token are left out as well: a head that finds those by what a previous-token head
wrote is an induction head, which is the same mechanism under its own name. For Q, a query counts
only if the fetched token also occurs elsewhere: a head that attends to the same position by itself
compares nothing.

Comparisons in which both sides were fetched are not searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.components import Component
from interp.run import Add, Array, Replace, Site, Swap
from interp.run.edits import Edits
from probes.roles.change import RowMean, over_rows
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.direct import Direct
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Keys, KeysOf, Place, has_readout
from probes.roles.examined import Examined, of_head

_RELAYING, _MATCHING = "virtual-copying", "composed-equality"
_RELAYED_ON, _KEYS = "shuffled", "matched"

_FEWEST = 8
"""The least number of rows with queries that have keys."""

_TRIED = 6
"""The most earlier heads that fetch the same and are tried one by one."""

_MOST = 0.5
"""The least share of attention on a token that is fetched."""

Input = Literal["q", "k", "v"]

_KEPT: dict[Input, str] = {"q": "k", "k": "q", "v": "pattern"}
"""Each input → what stays as it is when the input changes."""

Rows = Float[Tensor, " row"]
Shares = Float[Tensor, "row head writer"]


def composition_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test every head for copying or comparing the tokens that earlier heads fetched.

    Yields:
        Two findings for each head with earlier heads, whether their tests pass or not; or why the
        roles could not be tested for.
    """
    evidence, effects = of.evidence, of.effects
    if effects is None or not has_readout(evidence.model):
        why = "no weights are named that heads' writes could be read with"
        yield from (Lacking(role, why) for role in (_RELAYING, _MATCHING))
        return
    reading, fetching = Reading(effects), Fetching(evidence)
    lacking = reading.lacks()
    if lacking:
        why = f"the model has no hook {lacking[0]}"
        yield from (Lacking(role, why) for role in (_RELAYING, _MATCHING))
        return
    rises, kind = RelayedRises(evidence, fetching), evidence.profile.rows["matched"]
    copied: list[Relayed] = []
    compared: list[Match] = []
    for layer in sorted({layer for layer, _ in evidence.heads}):
        copied += rises.best(layer)
        compared += closest(evidence, fetching, layer)
        fetching.by(kind, layer)  # while the layer's attention is at hand
    yield from (examine_relay(effects, reading, rises, one) for one in copied)
    yield from (examine_match(effects, reading, fetching, one) for one in compared)


@dataclass(frozen=True)
class Relayed:
    """The earlier heads whose fetched tokens a head may copy.

    Attributes:
        place: Layer and number of the head that copies.
        writers: The earlier heads that fetch the same, the best one first.
        sign: 1 if the head raises what they fetched, −1 if it lowers it.
        rows: For each row and earlier head, by how much the head raises (or, with sign −1, lowers)
            the logits of what the earlier head fetched.
    """

    place: Place
    writers: tuple[Place, ...]
    sign: float
    rows: Float[Tensor, "row writer"]


class RelayedRises:
    """Measures how much a head raises the logits of the tokens that earlier heads fetched at its
    keys.

    A row's score is the head's direct effect, weighted by its attention to each key, on the logit
    of the token that an earlier head fetched there, minus the same for the tokens of another row.

    Args:
        evidence: The model and its rows; the model needs an unembedding.
        fetching: Finds which token each head fetches at each position.
    """

    def __init__(self, evidence: Evidence, fetching: Fetching) -> None:
        self.evidence, self._fetching = evidence, fetching
        self._direct = Direct(evidence)
        inputs = evidence.batch(_RELAYED_ON).inputs
        self._columns = self._direct.read.T[inputs].cpu()

    def best(self, layer: int) -> Iterator[Relayed]:
        """Find, for each head of a layer, the earlier heads whose fetched tokens it raises, or
        lowers, most.

        They are chosen on every second row.

        Args:
            layer: The layer.

        Yields:
            The earlier heads of each head; nothing for the first layer with heads.
        """
        earlier = [other for other in self.evidence.heads if other[0] < layer]
        for place in self.evidence.heads:
            if place[0] == layer and earlier:
                yield self._best(place, earlier)

    def _best(self, place: Place, earlier: Sequence[Place]) -> Relayed:
        found = self._of(place, earlier)
        mean = found[::2].mean(0)
        best = int(mean.abs().argmax())
        sign = 1.0 if float(mean[best]) >= 0 else -1.0
        size = sign * mean
        order, least = size.argsort(descending=True).tolist(), float(size[best]) / 2
        alike = [at for at in order if float(size[at]) >= least][:_TRIED]
        return Relayed(place, tuple(earlier[at] for at in alike), sign, sign * found[:, alike])

    def without(self, reading: Reading, one: Relayed, lost: Sequence[Place]) -> Rows:
        """Measure the head's copying with earlier heads' outputs removed from its value input.

        Copying is how much the head's direct effect raises the logits of the tokens that the first
        of its earlier heads attends to, above those of another row's tokens.

        Args:
            reading: Computes the head's output with part of its input removed.
            one: The head and its earlier heads.
            lost: The earlier heads whose outputs are removed, as (layer, head).

        Returns:
            The rise for each row; for a head that lowers these logits, how much it lowers them.
        """
        value = reading.write_without(_RELAYED_ON, one.place, lost)
        return one.sign * self._of(one.place, one.writers[:1], value)[:, 0]

    def writer_tokens(self, kind: str, writer: Place) -> Int[Tensor, "row key"]:
        """Return the token that an earlier head attends to at each position, if it is another one.

        The head's attention at a position is summed over keys that hold the same token. A token
        counts if it gets at least half of this attention.

        Args:
            kind: The kind of rows, a key of the evidence's views.
            writer: The earlier head, as (layer, head).

        Returns:
            Token ids ``[row, position]``; −1 where no token gets half of the attention, or where
            that token is the one at the position itself. The positions are the ones that a later
            head reads as keys.
        """
        inputs = self.evidence.batch(kind).inputs
        tokens = self._fetching.by(kind, writer[0]).tokens[:, writer[1]]
        return torch.where(tokens != inputs, tokens, -1)

    def _of(
        self, place: Place, writers: Sequence[Place], value: Tensor | None = None
    ) -> Float[Tensor, "row writer"]:
        evidence, (layer, head) = self.evidence, place
        pattern = torch.cat([some[:, head] for some in evidence.patterns(_RELAYED_ON, layer)])
        counted = evidence.views[_RELAYED_ON].counted.to(pattern)
        written = self._direct.scaled_write(_RELAYED_ON, place, value).to(pattern).cpu()
        by_key = torch.einsum("rqk,rqd->rkd", pattern * counted[..., None], written)
        by_key = by_key / counted.sum(1).clamp_min(1)[:, None, None]
        named = torch.stack([self.writer_tokens(_RELAYED_ON, one) for one in writers], dim=2)
        places = torch.stack([self._places(one) for one in writers], dim=2)
        scores = [
            self._sum_logits(
                by_key, named.roll(by, 0), places.roll(by, 0), self._columns.roll(by, 0)
            )
            for by in (0, 1)
        ]
        return (scores[0] - scores[1]).double()

    def _places(self, writer: Place) -> Int[Tensor, "row key"]:
        return self._fetching.by(_RELAYED_ON, writer[0]).places[:, writer[1]]

    @staticmethod
    def _sum_logits(by_key: Tensor, named: Tensor, places: Tensor, columns: Tensor) -> Tensor:
        logits = torch.einsum("rkd,rtd->rkt", by_key, columns.to(by_key))
        return (logits.gather(2, places) * (named >= 0)).sum(1)


def examine_relay(effects: Effects, reading: Reading, rises: RelayedRises, one: Relayed) -> Found:
    """Test whether one head copies what earlier heads fetched.

    Args:
        effects: The effects of edits on the model.
        reading: Measures what the head reads of earlier heads' outputs.
        rises: Measures how much the head raises what they fetched.
        one: The head and the earlier heads.

    Returns:
        The finding. Its causal tests are made only if the behaviour holds.
    """
    evidence = effects.evidence
    test, cause, target = _rise(evidence, one, one.writers[0]), list[Test](), ""
    tokens: Callable[[str], Tensor] | None = None
    if holds([test]):
        path = _Raised(reading, rises, one)
        read = path.read()
        test, target = _rise(evidence, one, read[0]), names(read)
        tokens = partial(rises.writer_tokens, writer=read[0])
        cause = path.tests(read)
        if holds(cause):
            cause += [path.loss(effects, read), *effects.without_head(one.place)]
    strength = one.sign * test.score
    return of_head(one.place, _RELAYING, [test], cause, strength, target=target, tokens=tokens)


def _rise(evidence: Evidence, one: Relayed, writer: Place) -> Test:
    """Test, on the rows that were not used for choosing, by how much the head raises what one
    earlier head fetched."""
    verb = "raises" if one.sign > 0 else "lowers"
    name = f"{verb} the logits of what {names([writer])} fetched where it attends by"
    rows = one.rows[1::2, one.writers.index(writer)]
    return over_rows(rows.numpy()).test(name, evidence.floors.copying, "relayed")


@dataclass(frozen=True)
class _Raised:
    """The path from earlier heads through a head's values to the output.

    Attributes:
        reading: Measures the head's output when its values lack the outputs of earlier heads.
        rises: Measures how much the head raises what earlier heads fetched.
        one: The head, and the earlier heads that fetch the same.
    """

    reading: Reading
    rises: RelayedRises
    one: Relayed

    def read(self) -> tuple[Place, ...]:
        """Return the earlier heads whose outputs the head reads in its values.

        For each of the earlier heads that fetch the same tokens, the share of the copying that is
        lost when the head's values lack that head's output is averaged over every second row. The
        heads without which enough is lost are returned (:func:`missed_heads`); all, if there is no
        such head.
        """
        alone = {
            writer: float(self._lost_share([writer])[::2].mean()) for writer in self.one.writers
        }
        return missed_heads(alone, self.rises.evidence.floors.fall)

    def tests(self, writers: Sequence[Place]) -> list[Test]:
        """Test whether the rise is due to what some earlier heads wrote, and more than to what
        other heads wrote."""
        floors, others = self.rises.evidence.floors, self.reading.loudest(_RELAYED_ON, writers)
        lost = self._lost_share(writers)
        words = f"without what {names(writers)} wrote in its values that falls by a share of"
        tests = [over_rows(lost[1::2].numpy()).test(words, floors.specific, "unrelayed")]
        if others and holds(tests):
            words = f"beyond what it falls by without {names(others)} there"
            beyond = over_rows((lost - self._lost_share(others))[1::2].numpy())
            tests.append(beyond.test(words, floors.fall, "unrelayed beyond"))
        return tests

    def loss(self, effects: Effects, writers: Sequence[Place]) -> Test:
        """Test whether the loss rises when the head's values lack what some earlier heads wrote, on
        the kind of rows where it rises most."""

        unread = {k: self.reading.unread(k, self.one.place, writers) for k in effects.trials}
        words = f"without what {names(writers)} wrote in its values"
        return effects.worst(words, unread)

    def _lost_share(self, writers: Sequence[Place]) -> Rows:
        """Return, for each row, the share of the mean rise that is lost without what some heads
        wrote."""
        rows, left = self.one.rows[:, 0], self.rises.without(self.reading, self.one, writers)
        return (rows - left) / max(float(rows.mean()), 1e-9)


@dataclass(frozen=True)
class Match:
    """The earlier heads whose fetched tokens a head may compare, and its attention to the matching
    keys.

    Attributes:
        place: Layer and number of the head that compares.
        read_as: The input by which the head reads the earlier heads: ``k`` or ``q``.
        writers: The earlier heads, the best one first.
        share: The share of attention on each earlier head's keys, row by row; NaN for a row in
            which no query has such keys.
        beyond: By how much it exceeds the share on the keys that another row gives.
    """

    place: Place
    read_as: Input
    writers: tuple[Place, ...]
    share: Float[Tensor, "row writer"]
    beyond: Float[Tensor, "row writer"]


def closest(evidence: Evidence, fetching: Fetching, layer: int) -> Iterator[Match]:
    """Find, for each head of a layer, the earlier heads whose keys it attends to most.

    They are chosen on every second row, by the excess of attention over the keys that another row
    gives.

    Args:
        evidence: The model and its rows.
        fetching: Finds which token each head fetches at each position.
        layer: The layer.

    Yields:
        The earlier heads of each head; nothing for the first layer with heads.
    """
    heads = [place for place in evidence.heads if place[0] == layer]
    earlier = [place for place in evidence.heads if place[0] < layer]
    if not earlier:
        return
    kinds: tuple[Input, Input] = ("k", "q")
    tried = [(side, writer) for side in kinds for writer in earlier]
    found = [_attention_shares(evidence, fetching, layer, side) for side in kinds]
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


def _attention_shares(
    evidence: Evidence, fetching: Fetching, layer: int, side: Input
) -> tuple[Shares, Shares]:
    """Return every head's share of attention on the keys of every earlier head, and on the keys
    that the row before gives."""
    kind = evidence.profile.rows[_KEYS]
    pattern = torch.cat(evidence.patterns(kind, layer)).float()
    pattern = pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-12)
    counted, inputs = evidence.views[kind].counted, evidence.batch(kind).inputs
    owns, others = [], []
    for before in sorted({one for one, _ in evidence.heads if one < layer}):
        fetched = fetching.by(kind, before)
        keys, asked = matching_keys(inputs, fetched.tokens, fetched.places, side)
        asked = (asked & counted[:, None]).float()
        weight = keys * (asked / asked.sum(-1, keepdim=True))[..., None]  # NaN: none is asked
        owns.append(torch.einsum("rhij,reij->rhe", pattern, weight))
        others.append(torch.einsum("rhij,reij->rhe", pattern, weight.roll(1, 0)))
    return torch.cat(owns, dim=2), torch.cat(others, dim=2)


def matching_keys(
    inputs: Int[Tensor, "row pos"], tokens: Tensor, places: Tensor, side: Input
) -> tuple[Bool[Tensor, "row head query key"], Bool[Tensor, "row head query"]]:
    """Find the keys that match what heads fetched, and the queries that have such keys.

    Keys with the query's own token are left out; for ``k`` also keys after such a token.

    Args:
        inputs: The rows' tokens.
        tokens: The token that each head fetches at each position, −1 for none, ``[row, head,
            pos]``.
        places: The position from which it is fetched, ``[row, head, pos]``.
        side: ``q`` for keys that hold the token fetched at the query; ``k`` for keys at which the
            query's token was fetched.

    Returns:
        A mask of the keys, and a mask of the queries that count. For ``q``, a query counts only if
        it has such a key at another position than the token was fetched from.
    """
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
    """Return the keys that match what one earlier head fetched (:func:`matching_keys`), for the
    queries that count."""
    fetched, head = fetching.by(kind, writer[0]), slice(writer[1], writer[1] + 1)
    inputs = fetching.evidence.batch(kind).inputs
    keys, asked = matching_keys(inputs, fetched.tokens[:, head], fetched.places[:, head], side)
    return (keys & asked[..., None])[:, 0]


def examine_match(effects: Effects, reading: Reading, fetching: Fetching, one: Match) -> Found:
    """Test whether one head finds its keys by comparing tokens that earlier heads fetched.

    Args:
        effects: The effects of edits on the model.
        reading: Measures what the head reads of earlier heads' outputs.
        fetching: Finds which token each head fetches at each position.
        one: The head and the earlier heads.

    Returns:
        The finding. Its causal tests are made only if the behaviour holds.
    """
    evidence = effects.evidence
    tests, cause, target = _attention(evidence, one, one.writers[0]), list[Test](), ""
    keys: KeysOf | None = None
    if holds(tests):
        fallen = _Fallen(reading, fetching, one)
        writers = fallen.read()
        tests = _attention(evidence, one, writers[0])
        target = f"{one.read_as.upper()} {names(writers)}"
        keys = partial(_keys_of, fetching, writer=writers[0], side=one.read_as)
        cause = fallen.tests(writers)
        cause += effects.without_keys(one.place, _KEYS, keys) if holds(cause) else []
    return of_head(one.place, _MATCHING, tests, cause, target=target, keys=keys)


def _attention(evidence: Evidence, one: Match, writer: Place) -> list[Test]:
    """Test, on the rows that were not used for choosing, the share of attention on one earlier
    head's keys."""
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
    """By how much a head's attention to its keys falls when it does not read what earlier heads
    wrote."""

    def __init__(self, reading: Reading, fetching: Fetching, one: Match) -> None:
        self._reading, self._one = reading, one
        self._floors = reading.evidence.floors
        self._kind = reading.evidence.profile.rows[_KEYS]
        self._keys = _keys_of(fetching, self._kind, one.writers[0], one.read_as)
        self._counted = reading.evidence.views[self._kind].counted
        pattern = torch.cat(reading.evidence.patterns(self._kind, one.place[0]))[:, one.place[1]]
        self._clean = self._shares(pattern)

    def read(self) -> tuple[Place, ...]:
        """Return the earlier heads whose outputs the head reads, by every second row; all, if none
        is missed alone."""
        alone = {one: float(self._rows([one])[::2].mean()) for one in self._one.writers}
        return missed_heads(alone, self._floors.fall)

    def tests(self, writers: Sequence[Place]) -> list[Test]:
        """Test whether the head finds its keys by what some earlier heads wrote, and more than by
        what other heads wrote."""
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

    def _over(self, rows: Float[Tensor, " row"]) -> RowMean:
        return over_rows(rows[1::2].numpy())

    def _shares(self, pattern: Float[Tensor, "row query key"]) -> Float[Tensor, " row"]:
        asked = (self._keys.any(-1) & self._counted).double()
        total = pattern.double().sum(-1).clamp_min(1e-12)
        share = (pattern.double() * self._keys).sum(-1) / total
        return (share * asked).sum(1) / asked.sum(1)


@dataclass(frozen=True)
class Fetched:
    """The tokens that the heads of a layer fetch at every position.

    Attributes:
        tokens: The tokens; −1 where no token has at least half of the attention.
        places: The positions from which they are fetched.
    """

    tokens: Int[Tensor, "row head pos"]
    places: Int[Tensor, "row head pos"]


class Fetching:
    """Finds which token each head fetches at each position: the one with most of its attention.

    Results are kept, so that each layer's attention is read once for each kind of rows.

    Args:
        evidence: The evidence, with its model and rows of tokens.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._known: dict[tuple[str, int], Fetched] = {}

    def by(self, kind: str, layer: int) -> Fetched:
        """Return what the heads of a layer fetch on rows of one kind."""
        if (kind, layer) not in self._known:
            inputs, start, found = self.evidence.batch(kind).inputs, 0, []
            for pattern in self.evidence.patterns(kind, layer):
                found.append(fetched_tokens(pattern, inputs[start : start + len(pattern)]))
                start += len(pattern)
            tokens, places = (torch.cat(some) for some in zip(*found, strict=True))
            self._known[kind, layer] = Fetched(tokens, places)
        return self._known[kind, layer]


def fetched_tokens(
    pattern: Float[Tensor, "row head query key"], inputs: Int[Tensor, "row pos"]
) -> tuple[Int[Tensor, "row head query"], Int[Tensor, "row head query"]]:
    """Find the token that each head fetches at each query: the one with most of its attention.

    Args:
        pattern: The attention patterns of a layer's heads.
        inputs: The rows' tokens.

    Returns:
        The token ids, −1 where no token has at least half of the attention; and the key with that
        token that is attended to most.
    """
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


class Reading:
    """Measures what a head reads of earlier heads' outputs, by path patching.

    The head's layer is run again on a residual stream without what those heads wrote, minus its
    mean over rows. The difference reaches only one of the head's inputs: queries, keys or values.

    Args:
        effects: The effects of edits; its evidence has the model and the rows.
    """

    def __init__(self, effects: Effects) -> None:
        self.effects, self.evidence = effects, effects.evidence

    def lacks(self) -> list[str]:
        """Return the names of the hooks that are needed and that the model does not have."""
        known, layers = self.evidence.model.hook_dict, {layer for layer, _ in self.evidence.heads}
        hooks = [Site(layer, kind).name for layer in sorted(layers) for kind in _KEPT.values()]
        return [name for name in hooks if name not in known]

    def attention(
        self, kind: str, place: Place, writers: Sequence[Place], read_as: Input
    ) -> Float[Tensor, "row query key"]:
        """Return the head's attention pattern when its queries or keys are computed without what
        earlier heads wrote.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            writers: Layer and number of each earlier head.
            read_as: ``q`` for queries, ``k`` for keys.
        """
        return self._without(kind, writers, read_as, Site(place[0], "pattern", place[1])).cpu()

    def write_without(
        self, kind: str, place: Place, writers: Sequence[Place]
    ) -> Float[Tensor, "row query part"]:
        """Return the head's output when its values are computed without what earlier heads wrote.

        Its attention stays as it is. The output is the activation at the head's hook,
        ``self.evidence.site(place)``.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            writers: Layer and number of each earlier head.
        """
        return self._without(kind, writers, "v", self.evidence.site(place))

    def unread(self, kind: str, place: Place, writers: Sequence[Place]) -> Edits:
        """Return the edit that computes the head's values without what earlier heads wrote.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            writers: Layer and number of each earlier head.
        """
        by = Array(
            self.write_without(kind, place, writers), f"it without {names(writers)} in its values"
        )
        return (Replace(self.evidence.site(place), by),)

    def loudest(self, kind: str, writers: Sequence[Place]) -> list[Place]:
        """Return the other heads of the earlier heads' layers whose outputs are largest, as many as
        earlier heads.

        Args:
            kind: The kind of rows.
            writers: Layer and number of each earlier head.
        """
        size: dict[Place, float] = {}
        for layer in sorted({layer for layer, _ in writers}):
            for place in self.evidence.heads:
                if place[0] == layer and place not in writers:
                    write = self.effects.writes.together([place], kind)
                    size[place] = float(write.square().sum())
        return sorted(size, key=lambda place: -size[place])[: len(writers)]

    def _without(self, kind: str, writers: Sequence[Place], read_as: Input, site: Site) -> Tensor:
        """Return the activation at a site when its layer's input lacks what some heads wrote, and
        only one input of the layer's heads receives the difference."""
        write = torch.stack([self.effects.writes.together([one], kind) for one in writers]).sum(0)
        lacking = Add(Site(site.layer, "resid_pre"), Array(-write, f"less {names(writers)}"))
        stays = Swap(Site(site.layer, _KEPT[read_as]))
        return self.evidence.run(kind).with_(lacking, stays).at([site])[site]


def missed_heads(alone: Mapping[Place, float], floor: float) -> tuple[Place, ...]:
    """Return the heads that are missed alone: those without which at least the floor is lost, and
    at least half of the most that is lost without one head. All heads if none is missed.

    Args:
        alone: Head → what is lost without its output alone.
        floor: The least loss that counts.
    """
    least = max(max(alone.values()) / 2, floor)
    return tuple(one for one in alone if alone[one] >= least) or tuple(alone)


def names(places: Sequence[Place]) -> str:
    """Return heads in words: ``L0H1 and L0H3``."""
    return " and ".join(Component("head", *place).name for place in places)
