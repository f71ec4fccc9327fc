"""What the stream before a layer predicts: read by the final norm and the unembedding.

    forecast    the token with the largest logit, where it is at least a nat above the mean logit
    its keys    earlier positions that hold that token, for queries whose own token is another
    forgotten   the stream without the direction that the forecast's logit is read along

A forecast is a direction of the stream, not a belief of the model: later layers may overrule it.
Every layer is read once for each kind of rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.roles.direct import Direct
from probes.roles.evidence import Evidence, Keys, Place
from probes.roles.runs import Edits

__all__ = ["Forecasts"]

_TOLD = 1.0
"""Nats above the mean logit from which on a token counts as predicted."""

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

        def act(stream: Tensor, hook: Any, rows: slice) -> Tensor:
            along = self._direct.read.T[tokens[rows]].to(stream)
            size = (stream * along).sum(-1, keepdim=True) / along.square().sum(-1, keepdim=True)
            return stream - size * along * asked[rows, :, None].to(stream)

        return lambda rows: [(f"blocks.{layer}.hook_resid_pre", partial(act, rows=rows))]

    @torch.no_grad()
    def _tokens(self, kind: str, layer: int) -> tuple[Int[Tensor, "row query"], Marks]:
        """The token predicted before a layer, and where one other than the query's own is."""
        if (kind, layer) not in self._known:
            model, runs = self.evidence.model, self.evidence.runs(kind)
            found = []
            for _, stream in runs.entering(layer):
                logits = model.unembed(model.ln_final(stream)).float().cpu()
                most = logits.max(-1)
                found.append((most.indices, most.values - logits.mean(-1) >= _TOLD))
            tokens, told = (torch.cat(some) for some in zip(*found, strict=True))
            self._known[kind, layer] = tokens, told & (tokens != runs.batch.inputs)
        return self._known[kind, layer]
