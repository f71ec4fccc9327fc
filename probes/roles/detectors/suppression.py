"""Detect heads that suppress a copy: they find the token that is predicted, and lower it.

    behaviour   at queries whose stream, read out before the head's layer, predicts another token
                than the query's own that came before: attention goes to its places, beyond even
                attention; what the head writes lowers that token's logit, and in general those of
                the tokens it attends to
    cause       that attention falls when the stream no longer predicts the token; without it the
                loss rises

A head that attends to the token before where that is what is predicted looks the same on the rows;
its attention stays when the prediction is taken out of the stream. A prediction is read off weights
below: of a wrapped module and a store nothing is said. A head that looks for its token by what an
earlier layer wrote for it alone, and not by what is predicted, is none.

What the stream before a layer predicts is read by the final norm and the unembedding:

    forecast    the token with the largest logit, where it is at least a nat above the mean logit
    its keys    earlier positions that hold that token, for queries whose own token is another
    forgotten   the stream without the direction that the forecast's logit is read along

A forecast is a direction of the stream, not a belief of the model: later layers may overrule it.
Every layer is read once for each kind of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.hooks.capture import evaluating
from interp.run import Add, Array, Site
from interp.run.edits import Edits
from probes.roles.change import over_rows
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.direct import Direct
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Keys, KeysOf, Place, has_readout
from probes.roles.examined import Examined, of_head

_ROLE, _KEYS = "copy-suppression", "predicted"
_FEWEST = 8
"""The least number of rows in which a token is predicted that came before."""
_TOLD = 1.0
"""Nats above the mean logit from which on a token counts as predicted."""

_ROWS = 8
"""Rows whose logits are held at once."""

Marks = Bool[Tensor, "row query"]


def suppression_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether every head lowers what the stream before it predicts."""
    evidence, effects = of.evidence, of.effects
    if effects is None or not has_readout(evidence.model):
        yield Lacking(_ROLE, "no weights are named that a prediction could be read with")
        return
    forecasts = Forecasts(evidence)
    for place in evidence.heads:
        keys = partial(forecasts.keys, layer=place[0])
        tests = _behaviour(evidence, forecasts, place, keys)
        cause = _cause(effects, forecasts, place, keys) if holds(tests) else []
        yield of_head(place, _ROLE, tests, cause, keys=keys)


def _behaviour(evidence: Evidence, forecasts: Forecasts, place: Place, own: KeysOf) -> list[Test]:
    """Where the head looks, and what it makes of the tokens there."""
    floors, kind = evidence.floors, evidence.profile.rows[_KEYS]
    words = "share of attention to earlier places of the token that is predicted before it"
    copied = evidence.score(place, "copying", evidence.profile.rows["after_same"])
    if copied is None or -copied.effect < floors.copying:  # then what is predicted is not read
        return [Test(words, 0.0, floors.share, 1.0, family=_KEYS)]
    keys, seen = own(kind), evidence.head_attention(place, kind)
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
    lowered = -(forecasts.logit_effect(kind, place) * asked).sum(1) / count
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


def _cause(effects: Effects, forecasts: Forecasts, place: Place, own: KeysOf) -> list[Test]:
    """It looks for what is predicted, and is needed for that."""
    evidence = effects.evidence
    kind = evidence.profile.rows[_KEYS]
    fallen = effects.falls.with_edits(
        place, kind, own(kind), forecasts.removal_edits(kind, place[0])
    )
    words = "without what the stream predicts that share falls by"
    return [
        fallen.test(words, evidence.floors.fall, "forgotten"),
        *effects.without_keys(place, _KEYS, own),
    ]


class Forecasts:
    """What the streams of some evidence's model predict before each layer.

    Args:
        evidence: The evidence, whose model has a final norm and an unembedding.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._direct = Direct(evidence)
        self._known: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def keys(self, kind: str, layer: int) -> Keys:
        """Earlier positions that hold the token predicted before a layer, ``[row, query, key]``."""
        return earlier_places(self.evidence.batch(kind).inputs, *self._tokens(kind, layer))

    def logit_effect(self, kind: str, place: Place) -> Float[Tensor, "row query"]:
        """A head's direct effect on the logit of the token predicted before its layer.

        The predicted token has the largest logit when the final norm and the unembedding are
        applied to the residual stream before the layer (logit lens). The head's output is read by
        the unembedding with the final norm's scale held fixed; effects through later layers are
        not included.

        Args:
            kind: The kind of rows, a key of the evidence's views.
            place: The head, as (layer, head).

        Returns:
            The change of the logit minus the mean change over the vocabulary, at every query, in
            nats; negative where the head lowers the logit.
        """
        return self._direct.at(kind, place, self._tokens(kind, place[0])[0])

    def removal_edits(self, kind: str, layer: int) -> Edits:
        """The edits that take the predicted token's direction out of the stream before a layer, at
        the queries that have its keys."""
        tokens, asked = self._tokens(kind, layer)[0], self.keys(kind, layer).any(-1)
        stream = self._stream(kind, layer)
        along = self._direct.read.T[tokens].to(stream)
        size = (stream * along).sum(-1, keepdim=True) / along.square().sum(-1, keepdim=True)
        less = -size * along * asked[..., None].to(stream)
        return (Add(Site(layer, "resid_pre"), Array(less, "less what it predicts")),)

    def _stream(self, kind: str, layer: int) -> Float[Tensor, "row query feature"]:
        site = Site(layer, "resid_pre")
        return self.evidence.run(kind).at([site])[site]

    def _tokens(self, kind: str, layer: int) -> tuple[Int[Tensor, "row query"], Marks]:
        """The token predicted before a layer, and where one other than the query's own is."""
        if (kind, layer) not in self._known:
            inputs, model = self.evidence.batch(kind).inputs, self.evidence.model
            self._known[kind, layer] = predicted_tokens(model, self._stream(kind, layer), inputs)
        return self._known[kind, layer]


@torch.no_grad()
def predicted_tokens(
    model: Any, streams: Float[Tensor, "row query feature"], inputs: Int[Tensor, "row query"]
) -> tuple[Int[Tensor, "row query"], Marks]:
    """The token that the final norm and the unembedding make of a stream, and where it is clearly
    predicted and not the query's own."""
    found = []
    with evaluating(model):
        for stream in streams.split(_ROWS):
            logits = model.unembed(model.ln_final(stream)).float().cpu()
            most = logits.max(-1)
            found.append((most.indices, most.values - logits.mean(-1) >= _TOLD))
    tokens, told = (torch.cat(some) for some in zip(*found, strict=True))
    return tokens, told & (tokens != inputs)


def earlier_places(inputs: Int[Tensor, "row key"], tokens: Tensor, told: Marks) -> Keys:
    """Earlier positions that hold the token which a query is told, ``[row, query, key]``."""
    earlier = torch.ones(2 * (inputs.shape[1],), dtype=torch.bool).tril(-1)
    found: Keys = (inputs[:, None, :] == tokens[..., None]) & told[..., None] & earlier
    return found
