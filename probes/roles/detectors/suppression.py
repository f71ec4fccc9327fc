"""Detect copy-suppression heads: they attend to the token that is predicted before their layer, and
lower its logit.

    behaviour   at queries at which the stream before the head's layer predicts a token that
                occurred before and is not the query's own: attention goes to the positions of
                that token, more than even attention would; the head lowers that token's logit,
                and in general those of the tokens it attends to
    cause       that attention falls when the prediction is removed from the stream; without that
                attention the loss rises

A head that attends to the previous token where this is what is predicted looks the same on the
rows, but its attention stays when the prediction is removed from the stream. The prediction is
computed with the weights named below, so the role is not tested for a wrapped module or a store. A
head that looks for its token by what an earlier layer wrote for it alone, and not by what is
predicted, does not have this role.

The prediction of the stream before a layer is read by the final norm and the unembedding (logit
lens):

    forecast    the token with the largest logit, if that is at least 1 nat above the mean logit
    its keys    earlier positions that hold that token, for queries whose own token is another
    forgotten   the stream without its component along the direction that the forecast's logit is
                read from

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
    """Test whether every head attends to, and lowers, the token that the stream before it predicts.

    Yields:
        A finding for each head, whether its tests pass or not; or why the role could not be tested
        for.
    """
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
    """Test whether the head attends to the predicted token's positions and lowers its logit."""
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
    """Test whether the attention falls without the prediction, and the loss rises without that
    attention."""
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
    """The tokens that a model predicts at each layer, read by the logit lens.

    Args:
        evidence: The evidence, whose model has a final norm and an unembedding.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._direct = Direct(evidence)
        self._known: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def keys(self, kind: str, layer: int) -> Keys:
        """Return the earlier positions that hold the token predicted before a layer, ``[row, query,
        key]``.

        Queries without a clear prediction, or whose own token is predicted, have no keys.
        """
        return earlier_places(self.evidence.batch(kind).inputs, *self._tokens(kind, layer))

    def logit_effect(self, kind: str, place: Place) -> Float[Tensor, "row query"]:
        """Return a head's direct effect on the logit of the token predicted before its layer.

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
        """Return the edit that removes the predicted token's direction from the stream before a
        layer.

        Only queries that have the token at an earlier position are changed.

        Args:
            kind: The kind of rows.
            layer: The layer.
        """
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
        """Return the token predicted before a layer, and where it is clearly predicted and not the
        query's own."""
        if (kind, layer) not in self._known:
            inputs, model = self.evidence.batch(kind).inputs, self.evidence.model
            self._known[kind, layer] = predicted_tokens(model, self._stream(kind, layer), inputs)
        return self._known[kind, layer]


@torch.no_grad()
def predicted_tokens(
    model: Any, streams: Float[Tensor, "row query feature"], inputs: Int[Tensor, "row query"]
) -> tuple[Int[Tensor, "row query"], Marks]:
    """Return the token with the largest logit when the final norm and the unembedding read a
    stream.

    Args:
        model: The model.
        streams: The residual stream.
        inputs: The rows' tokens.

    Returns:
        The token ids; and True where the logit is at least 1 nat above the mean logit and the token
        is not the query's own.
    """
    found = []
    with evaluating(model):
        for stream in streams.split(_ROWS):
            logits = model.unembed(model.ln_final(stream)).float().cpu()
            most = logits.max(-1)
            found.append((most.indices, most.values - logits.mean(-1) >= _TOLD))
    tokens, told = (torch.cat(some) for some in zip(*found, strict=True))
    return tokens, told & (tokens != inputs)


def earlier_places(inputs: Int[Tensor, "row key"], tokens: Tensor, told: Marks) -> Keys:
    """Return the earlier positions that hold the token predicted at a query, ``[row, query, key]``.

    Args:
        inputs: The rows' tokens.
        tokens: The token predicted at each query.
        told: True for the queries that have keys.
    """
    earlier = torch.ones(2 * (inputs.shape[1],), dtype=torch.bool).tril(-1)
    found: Keys = (inputs[:, None, :] == tokens[..., None]) & told[..., None] & earlier
    return found
