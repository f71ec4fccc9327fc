"""Detect heads that suppress a copy: they find the token that is predicted, and lower it.

    behaviour   at queries whose stream, read out before the head's layer, predicts another token
                than the query's own that came before: attention goes to its places, beyond even
                attention; what the head writes lowers that token's logit, and in general those of
                the tokens it attends to
    cause       that attention falls when the stream no longer predicts the token; without it the
                loss rises

A head that attends to the token before where that is what is predicted looks the same on the rows;
its attention stays when the prediction is taken out of the stream. A prediction is read off weights
(:mod:`probes.roles.forecasts`): of a wrapped module and a store nothing is said. A head that looks
for its token by what an earlier layer wrote for it alone, and not by what is predicted, is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from probes.roles.change import over_rows
from probes.roles.decision import Found, Test, holds
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place, has_readout
from probes.roles.examined import Examined
from probes.roles.forecasts import Forecasts

_ROLE, _KEYS = "copy-suppression", "predicted"
_FEWEST = 8
"""The least number of rows in which a token is predicted that came before."""


def suppression_roles(of: Examined) -> Iterator[Found]:
    """Test whether every head lowers what the stream before it predicts."""
    evidence, effects = of.evidence, of.effects
    if effects is None or not has_readout(evidence.model):
        evidence.lacks[_ROLE] = "no weights are named that a prediction could be read with"
        return
    forecasts = Forecasts(evidence)
    for place in evidence.heads:
        evidence.selected[place, _KEYS] = partial(forecasts.keys, layer=place[0])
        tests = _behaviour(evidence, forecasts, place)
        cause = _cause(effects, forecasts, place) if holds(tests) else []
        layer, head = place
        yield Found("head", layer, _ROLE, tests[0].score, tests, cause, head=head)


def _behaviour(evidence: Evidence, forecasts: Forecasts, place: Place) -> list[Test]:
    """Where the head looks, and what it makes of the tokens there."""
    floors, kind = evidence.floors, evidence.profile.rows[_KEYS]
    words = "share of attention to earlier places of the token that is predicted before it"
    copied = evidence.score(place, "copying", evidence.profile.rows["after_same"])
    if copied is None or -copied.effect < floors.copying:  # then what is predicted is not read
        return [Test(words, 0.0, floors.share, 1.0, family=_KEYS)]
    keys, seen = evidence.keys(kind, _KEYS, place), evidence.seen(place, kind)
    asked = keys.any(-1) & seen.counted
    chosen = asked.any(1)
    if int(chosen.sum()) < _FEWEST:
        return [Test.too_few(words, _FEWEST, floors.share)]
    count = asked.sum(1).clamp_min(1)
    even = keys.double().sum(-1) / seen.allowed.sum(-1)
    share = (seen.pattern * keys).sum(-1).double()
    rows = [((some * asked).sum(1) / count)[chosen].numpy() for some in (share, share - even)]
    tests = [
        over_rows(rows[0]).test(words, floors.share, _KEYS),
        over_rows(rows[1]).test("beyond even attention", floors.excess, f"{_KEYS} beyond"),
    ]
    if not holds(tests):
        return [*tests, Test("lowers that token's logit by", 0.0, floors.copying, 1.0)]
    lowered = -(forecasts.raised(kind, place) * asked).sum(1) / count
    return [
        *tests,
        over_rows(lowered[chosen].numpy()).test("lowers that token's logit by", floors.copying),
        Test(
            "lowers the logits of the tokens it attends to by",
            -copied.effect,
            floors.copying,
            copied.p,
            family="copying",
        ),
    ]


def _cause(effects: Effects, forecasts: Forecasts, place: Place) -> list[Test]:
    """It looks for what is predicted, and is needed for that."""
    evidence = effects.evidence
    edits = forecasts.forgotten(evidence.profile.rows[_KEYS], place[0])
    fallen = effects.falls_with(place, _KEYS, edits)
    words = "without what the stream predicts that share falls by"
    return [
        fallen.test(words, evidence.floors.fall, "forgotten"),
        *effects.without_keys(place, _KEYS),
    ]
