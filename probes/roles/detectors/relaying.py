"""Detect heads that copy what earlier heads fetched: two heads that act as one (virtual heads).

    relayed     of a head's key j: the token that an earlier head fetched there, if it is not the
                key's own
    behaviour   what the head writes, read through the final norm and the unembedding, raises the
                tokens relayed at its keys above those relayed in other rows, attention counted
    cause       that rise is gone when its values lack what the earlier head wrote, and not when
                they lack what the loudest others wrote; without that the loss rises; without the
                head it does

The head alone attends to the earlier head's position, the earlier head alone writes for its own:
only together do they move a token from where it stands to where it is said. Strength is signed:
negative where such tokens are lowered. A head that attends to the token by itself raises it as
well; its values do not need what the earlier head wrote.

Which earlier head is chosen on every second row and judged on the others. Of several that fetch the
same, those count whose writes the rise is lost without. Chains of three heads are not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.roles.change import over_rows
from probes.roles.decision import Found, Test, holds
from probes.roles.direct import Direct
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place
from probes.roles.examined import of_head
from probes.roles.fetched import Fetching
from probes.roles.reading import Reading, missed, names

_ROLE, _KIND = "virtual-copying", "shuffled"

_TRIED = 6
"""The most earlier heads that fetch the same and are tried one by one."""

Rows = Float[Tensor, " row"]


@dataclass(frozen=True)
class Relayed:
    """The earlier heads whose fetched tokens a head may copy.

    Attributes:
        place: The head that copies.
        writers: The earlier heads that fetch the same, the best one first.
        sign: 1 where it raises what they fetched, −1 where it lowers it.
        rows: By how much, row by row, of what each of them fetched.
    """

    place: Place
    writers: tuple[Place, ...]
    sign: float
    rows: Float[Tensor, "row writer"]


class Rises:
    """By how much heads raise the tokens that earlier heads fetched at their keys, above those of
    other rows."""

    def __init__(self, evidence: Evidence, fetching: Fetching) -> None:
        self.evidence, self._fetching = evidence, fetching
        self._direct = Direct(evidence)
        inputs = evidence.batch(_KIND).inputs
        self._columns = self._direct.read.T[inputs].cpu()

    def best(self, layer: int) -> Iterator[Relayed]:
        """For each head of a layer, the earlier heads whose fetched tokens it raises, or lowers,
        most on every second row."""
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
        """The rise of what the first earlier head fetched, when the head's values lack what some
        wrote."""
        value = reading.written(_KIND, one.place, lost)
        return one.sign * self._of(one.place, one.writers[:1], value)[:, 0]

    def named(self, kind: str, writer: Place) -> Int[Tensor, "row key"]:
        """The tokens that an earlier head fetched, where they are not the keys' own; else −1."""
        inputs = self.evidence.batch(kind).inputs
        tokens = self._fetching.by(kind, writer[0]).tokens[:, writer[1]]
        return torch.where(tokens != inputs, tokens, -1)

    def _of(
        self, place: Place, writers: Sequence[Place], value: Tensor | None = None
    ) -> Float[Tensor, "row writer"]:
        evidence, (layer, head) = self.evidence, place
        pattern = torch.cat([some[:, head] for some in evidence.patterns(_KIND, layer)])
        counted = evidence.views[_KIND].counted.to(pattern)
        written = self._direct.written(_KIND, place, value).to(pattern).cpu()
        by_key = torch.einsum("rqk,rqd->rkd", pattern * counted[..., None], written)
        by_key = by_key / counted.sum(1).clamp_min(1)[:, None, None]
        named = torch.stack([self.named(_KIND, one) for one in writers], dim=2)
        places = torch.stack([self._places(one) for one in writers], dim=2)
        scores = [
            self._summed(by_key, named.roll(by, 0), places.roll(by, 0), self._columns.roll(by, 0))
            for by in (0, 1)
        ]
        return (scores[0] - scores[1]).double()

    def _places(self, writer: Place) -> Int[Tensor, "row key"]:
        return self._fetching.by(_KIND, writer[0]).places[:, writer[1]]

    @staticmethod
    def _summed(by_key: Tensor, named: Tensor, places: Tensor, columns: Tensor) -> Tensor:
        logits = torch.einsum("rkd,rtd->rkt", by_key, columns.to(by_key))
        return (logits.gather(2, places) * (named >= 0)).sum(1)


def relayed(effects: Effects, reading: Reading, rises: Rises, one: Relayed) -> Found:
    """The tests of one head, and of what it reads where it raises, or lowers, such tokens."""
    evidence = effects.evidence
    test, cause, target = _behaviour(evidence, one, one.writers[0]), list[Test](), ""
    tokens: Callable[[str], Tensor] | None = None
    if holds([test]):
        path = _Path(reading, rises, one)
        read = path.read()
        test, target = _behaviour(evidence, one, read[0]), names(read)
        tokens = partial(rises.named, writer=read[0])
        cause = path.tests(read)
        if holds(cause):
            cause += [path.loss(effects, read), *effects.without_head(one.place)]
    strength = one.sign * test.score
    return of_head(one.place, _ROLE, [test], cause, strength, target=target, tokens=tokens)


def _behaviour(evidence: Evidence, one: Relayed, writer: Place) -> Test:
    """The rise of what one earlier head fetched, on the rows that nothing was chosen on."""
    verb = "raises" if one.sign > 0 else "lowers"
    name = f"{verb} the logits of what {names([writer])} fetched where it attends by"
    rows = one.rows[1::2, one.writers.index(writer)]
    return over_rows(rows.numpy()).test(name, evidence.floors.copying, "relayed")


@dataclass(frozen=True)
class _Path:
    """The path from earlier heads through a head's values to the output.

    Attributes:
        reading: What is lost when the values lack some writes.
        rises: What heads raise.
        one: The head, and the earlier heads that fetch the same.
    """

    reading: Reading
    rises: Rises
    one: Relayed

    def read(self) -> tuple[Place, ...]:
        """Those of the heads that fetch the same whose write is read, on every second row; all
        where none is missed by itself."""
        alone = {writer: float(self._lost([writer])[::2].mean()) for writer in self.one.writers}
        return missed(alone, self.rises.evidence.floors.fall)

    def tests(self, writers: Sequence[Place]) -> list[Test]:
        """The tests that the rise is due to what these heads wrote."""
        floors, others = self.rises.evidence.floors, self.reading.loudest(_KIND, writers)
        lost = self._lost(writers)
        words = f"without what {names(writers)} wrote in its values that falls by a share of"
        tests = [over_rows(lost[1::2].numpy()).test(words, floors.specific, "unrelayed")]
        if others and holds(tests):
            words = f"beyond what it falls by without {names(others)} there"
            beyond = over_rows((lost - self._lost(others))[1::2].numpy())
            tests.append(beyond.test(words, floors.fall, "unrelayed beyond"))
        return tests

    def loss(self, effects: Effects, writers: Sequence[Place]) -> Test:
        """The test that the loss rises on the kind of rows where it rises most."""

        unread = {k: self.reading.unread(k, self.one.place, writers) for k in effects.trials}
        words = f"without what {names(writers)} wrote in its values"
        return effects.worst(words, unread)

    def _lost(self, writers: Sequence[Place]) -> Rows:
        """The share of the mean rise that is lost, row by row."""
        rows, left = self.one.rows[:, 0], self.rises.without(self.reading, self.one, writers)
        return (rows - left) / max(float(rows.mean()), 1e-9)
