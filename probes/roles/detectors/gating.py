"""Detect heads that attend to the first position (rest there) unless an event happens.

    event       the query's token occurred before; or the query's token is in a class: the tokens
                at which the head gives less than half of its attention to the first position
    behaviour   nearly all or nearly none of the attention is on the first position; how much it is
                predicts whether the event happens, better than whether another row's does
    cause       the loss rises without its attention elsewhere, at queries where the event happens

Event and class are chosen on every second row and tested on the others. How well attention predicts
the event is measured by the area under the curve (AUC): how often, of two queries of a row, the one
without the event has more attention on the first position. Events of other rows say how much of
that is due to position alone. A head that never leaves the first position has no event and is not
gated; nor is a head that gives it half of its attention whatever happens, or one whose event
belongs to another role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention.key_sets import token_key_sets
from probes.roles.change import over_rows
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.evidence import Evidence, Keys
from probes.roles.examined import Examined, of_head
from probes.roles.selecting import Seen

_ROLE, _KEYS = "bos-gated", "moved"
_FEWEST = 8
"""The least number of rows with queries of both kinds."""

_RESTS = 0.8
"""The least attention on the first position of a head that rests, and what is left of one that does
not."""

Marks = Bool[Tensor, "row query"]
Happens = Callable[[Tensor], Marks]


def gating_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether every head attends to the first position unless an event happens.

    Yields:
        A finding for each head, whether its tests pass or not; without a model, that the role could
        not be tested for.
    """
    evidence, effects = of.evidence, of.effects
    if effects is None:
        yield Lacking(_ROLE, "no model can be run")
        return
    kind = evidence.profile.rows[_KEYS]
    for place in evidence.heads:
        seen = evidence.head_attention(place, kind)
        event = _Event.of(seen.half(0))
        keys = partial(_keys_of_events, evidence, happens=event.happens)
        tests = _behaviour(evidence, seen.half(1), event)
        cause = effects.without_keys(place, _KEYS, keys) if holds(tests) else []
        yield of_head(place, _ROLE, tests, cause, target=event.words, keys=keys)


@dataclass(frozen=True)
class _Event:
    """The event at which a head leaves the first position.

    Attributes:
        words: The event in words.
        happens: A function from the rows' tokens to a mask of the queries at which it happens.
    """

    words: str
    happens: Happens

    @classmethod
    def of(cls, seen: Seen) -> _Event:
        """Choose the event that attention on the first position predicts best."""
        rests, inputs = seen.pattern[..., 0].double()[:, 1:], seen.inputs[:, 1:]
        size = int(seen.inputs.max()) + 1
        count = torch.bincount(inputs.flatten(), minlength=size)
        total = torch.bincount(inputs.flatten(), rests.flatten(), minlength=size)
        members = ((total < 0.5 * count) & (count > 0)).nonzero()[:, 0]
        words = f"its token is one of {len(members)}"
        tried = (
            cls("its token came before", _came_before),
            cls(words, partial(torch.isin, test_elements=members)),
        )
        wins = _wins(seen)
        return max(tried, key=lambda one: float(_aucs(wins, one.happens(seen.inputs)).nanmean()))


def _behaviour(evidence: Evidence, seen: Seen, event: _Event) -> list[Test]:
    """Test whether attention on the first position predicts the event, and is nearly all or nearly
    none."""
    floors, rests = evidence.floors, seen.pattern[:, 1:, 0]
    happens = event.happens(seen.inputs)
    of_others = torch.stack([happens.roll(by, 0) for by in range(1, len(happens))])
    wins = _wins(seen)
    told, other = _aucs(wins, happens), _aucs(wins, of_others).nanmean(0)
    kept = ~(told.isnan() | other.isnan())
    words = f"AUC with which attention on the first position tells that {event.words}"
    if int(kept.sum()) < _FEWEST:
        return [Test.too_few(words, _FEWEST, floors.gated)]
    told, other = told[kept], other[kept]
    open_ = float((1 - other).mean())
    clear = float(((rests >= _RESTS) | (rests <= 1 - _RESTS)).double().mean())
    state = float((rests >= 0.5).double().mean())
    return [
        over_rows(told.numpy()).test(words, floors.gated, "gated"),
        over_rows(((told - other) / max(open_, 1e-9)).numpy()).test(
            "beyond other rows' events, of what these leave open,", floors.excess, "gated beyond"
        ),
        Test("queries that rest clearly or clearly do not, a share of", clear, floors.gated),
        Test("queries that do what fewer do, a share of", min(state, 1 - state), floors.mixed),
    ]


def _wins(seen: Seen) -> Float[Tensor, "row one other"]:
    """Return, for each pair of queries after the first, 1 if the one gives more attention to the
    first position than the other, 0.5 if both give the same, else 0."""
    rests = seen.pattern[:, 1:, 0].double()
    difference = rests[:, :, None] - rests[:, None, :]
    return (difference > 0).double() + 0.5 * (difference == 0)


def _aucs(
    wins: Float[Tensor, "row one other"], happens: Bool[Tensor, "*event row query"]
) -> Float[Tensor, "*event row"]:
    """Return, for each row, how often of two queries the one without the event gives more attention
    to the first position.

    NaN for a row whose queries all have the event, or all lack it.
    """
    with_event = happens[..., 1:].double()
    without = 1 - with_event
    won = torch.einsum("rqp,...rq->...rp", wins, without) * with_event
    return won.sum(-1) / (without.sum(-1) * with_event.sum(-1))


def _came_before(inputs: Tensor) -> Marks:
    return token_key_sets(inputs)["same"].any(-1)


def _keys_of_events(evidence: Evidence, kind: str, happens: Happens) -> Keys:
    """Return all keys but the first, of the queries at which the event happens."""
    inputs = evidence.batch(kind).inputs
    found = happens(inputs)[:, :, None].repeat(1, 1, inputs.shape[1])
    found[:, 0] = found[:, :, 0] = False
    return found & torch.ones_like(found[0]).tril()
