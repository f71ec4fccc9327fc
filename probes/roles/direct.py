"""What a head's write does to the logits at its own position, as the final norm and the unembedding
read it.

    logits   write / scale · R,  R the unembedding with the norm's gain, centred over the vocabulary

The norm's scale is held as it is, and what later layers make of the write is left out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.unembedding import SCALE, unembedding
from probes.roles.evidence import Evidence, Place
from probes.roles.writes import Writes


class Direct:
    """The direct effects of the heads of some evidence's model.

    Args:
        evidence: The evidence, whose model has a final norm and an unembedding.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.read, self._writes = unembedding(evidence.model), Writes(evidence)
        self._scales: dict[str, Tensor] = {}

    @torch.no_grad()
    def written(
        self, kind: str, place: Place, value: Float[Tensor, "row query part"] | None = None
    ) -> Float[Tensor, "row query feature"]:
        """What a head writes, over the final norm's scale; by default in the clean pass, else with
        this ``value`` at the hook at which it can be replaced."""
        (layer, head), site = place, self.evidence.site(place)
        written = self._writes.of_layer(kind, layer)[:, :, head] if value is None else value
        if site.kind == "z":
            written = written @ self.evidence.model.W_O[layer][head]
        return (written / self._scale(kind)).to(self.read.dtype)

    @torch.no_grad()
    def logits(
        self, kind: str, place: Place, tokens: Int[Tensor, " token"], rows: slice = slice(None)
    ) -> Float[Tensor, "row query token"]:
        """What a head adds to some tokens' logits, above the mean over the vocabulary."""
        return (self.written(kind, place)[rows] @ self.read[:, tokens]).double().cpu()

    @torch.no_grad()
    def at(
        self, kind: str, place: Place, tokens: Int[Tensor, "row query"]
    ) -> Float[Tensor, "row query"]:
        """What a head adds to one token's logit at each query, above the mean over all tokens."""
        return (self.written(kind, place) * self.read.T[tokens]).sum(-1).double().cpu()

    @torch.no_grad()
    def _scale(self, kind: str) -> Tensor:
        """The final norm's denominators, ``[row, query, 1]``; 1 where there is no such norm."""
        if kind not in self._scales:
            known = SCALE in self.evidence.model.hook_dict
            scale = self.evidence.final_scale(kind) if known else torch.ones(())
            self._scales[kind] = scale
        return self._scales[kind]
