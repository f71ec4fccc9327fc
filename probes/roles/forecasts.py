"""What the stream before a layer predicts: read by the final norm and the unembedding.

    forecast    the token with the largest logit, where it is at least a nat above the mean logit
    its keys    earlier positions that hold that token, for queries whose own token is another
    forgotten   the stream without the direction that the forecast's logit is read along

A forecast is a direction of the stream, not a belief of the model: later layers may overrule it.
Every layer is read once for each kind of rows.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.hooks.capture import evaluating
from interp.run import Add, Array, Site
from interp.run.edits import Edits
from probes.roles.direct import Direct
from probes.roles.evidence import Evidence, Keys, Place

_TOLD = 1.0
"""Nats above the mean logit from which on a token counts as predicted."""

_ROWS = 8
"""Rows whose logits are held at once."""

Marks = Bool[Tensor, "row query"]


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
        tokens, told = self._tokens(kind, layer)
        inputs = self.evidence.batch(kind).inputs
        earlier = torch.ones(2 * (inputs.shape[1],), dtype=torch.bool).tril(-1)
        return (inputs[:, None, :] == tokens[..., None]) & told[..., None] & earlier

    def raised(self, kind: str, place: Place) -> Float[Tensor, "row query"]:
        """By how much a head raises the predicted token's logit above the mean over tokens."""
        return self._direct.at(kind, place, self._tokens(kind, place[0])[0])

    def forgotten(self, kind: str, layer: int) -> Edits:
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

    @torch.no_grad()
    def _tokens(self, kind: str, layer: int) -> tuple[Int[Tensor, "row query"], Marks]:
        """The token predicted before a layer, and where one other than the query's own is."""
        if (kind, layer) not in self._known:
            model, found = self.evidence.model, []
            with evaluating(model):
                for stream in self._stream(kind, layer).split(_ROWS):
                    logits = model.unembed(model.ln_final(stream)).float().cpu()
                    most = logits.max(-1)
                    found.append((most.indices, most.values - logits.mean(-1) >= _TOLD))
            tokens, told = (torch.cat(some) for some in zip(*found, strict=True))
            inputs = self.evidence.batch(kind).inputs
            self._known[kind, layer] = tokens, told & (tokens != inputs)
        return self._known[kind, layer]
