"""What a head's write does to the logits at its own position, as the final norm and the unembedding
read it.

    logits   write / scale · R,  R the unembedding with the norm's gain, centred over the vocabulary

The norm's scale is held as it is, and what later layers make of the write is left out. The same
says what is lost when heads no longer raise the tokens that they attend to, and do all else they do
(:func:`direct_loss_rises`):

    whole      logits′ = logits − Σ_h ℓ_h
    attended   logits′(i, t) = logits(i, t) − Σ_h (ℓ_h(i, t) − mean of ℓ_h(i, ·) over other tokens)

for tokens t that a head gives more of its attention at i than even attention would. ℓ_h is what
head h adds to the logits by itself: an attended token is then neither raised nor lowered against
those that are not attended to. Of a head that maps tokens, t is the image of the attended token; of
one that copies what an earlier head fetched, what that head fetched where it attends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.unembedding import SCALE, unembedding
from interp.run import Loss
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
    def scaled_write(
        self, kind: str, place: Place, value: Float[Tensor, "row query part"] | None = None
    ) -> Float[Tensor, "row query feature"]:
        """What a head writes to the residual stream, divided by the final norm's scale.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            value: The activation at the head's hook, ``self.evidence.site(place)``; by default
                that of the clean pass.
        """
        (layer, head), site = place, self.evidence.site(place)
        written = self._writes.of_layer(kind, layer)[:, :, head] if value is None else value
        if site.kind == "z":
            written = written @ self.evidence.model.W_O[layer][head]
        return (written / self._scale(kind)).to(self.read.dtype)

    @torch.no_grad()
    def logits(
        self, kind: str, place: Place, tokens: Int[Tensor, " token"]
    ) -> Float[Tensor, "row query token"]:
        """What a head adds to some tokens' logits, above the mean over the vocabulary."""
        return (self.scaled_write(kind, place) @ self.read[:, tokens]).double().cpu()

    @torch.no_grad()
    def at(
        self, kind: str, place: Place, tokens: Int[Tensor, "row query"]
    ) -> Float[Tensor, "row query"]:
        """A head's direct effect on the logit of one token at each query, less the mean over the
        vocabulary.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            tokens: The token whose logit is read at each query.
        """
        return (self.scaled_write(kind, place) * self.read.T[tokens]).sum(-1).double().cpu()

    @torch.no_grad()
    def _scale(self, kind: str) -> Tensor:
        """The final norm's denominators, ``[row, query, 1]``; 1 where there is no such norm."""
        if kind not in self._scales:
            known = SCALE in self.evidence.model.hook_dict
            scale = self.evidence.final_scale(kind) if known else torch.ones(())
            self._scales[kind] = scale
        return self._scales[kind]


@torch.no_grad()
def direct_loss_rises(
    evidence: Evidence,
    kind: str,
    places: Sequence[Place],
    named: Mapping[Place, Int[Tensor, "row key"]],
    rows: Sequence[int] | None = None,
) -> tuple[Float[Tensor, "_ pos"], Float[Tensor, "_ pos"]]:
    """By how much the loss rises at scored positions when what heads add to the logits is left out:
    all of it, and what they add to those of attended tokens.

    Args:
        evidence: The evidence, whose model has a final norm and an unembedding.
        kind: The kind of rows.
        places: The heads, all at once.
        named: Head → the tokens that it raises for its keys, −1 for none; the keys' own for a head
            that is not there.
        rows: Numbers of the rows; all by default.
    """
    direct, run, batch = Direct(evidence), evidence.run(kind), evidence.batch(kind)
    tokens = [named.get(place, batch.inputs) for place in places]
    some_of = zip(places, tokens, strict=True)
    parts = [_part(evidence, direct, kind, place, mine) for place, mine in some_of]
    written = [direct.scaled_write(kind, place) for place in places]
    whole, some = torch.zeros(2, *batch.mask.shape, dtype=torch.float64)
    for at, output in run.outputs(rows):
        here, logits = (at.rows, at.positions), output.double().cpu()
        lost, fewer = logits.clone(), logits.clone()
        for mine, part, write in zip(tokens, parts, written, strict=True):
            fewer.scatter_add_(1, mine[at.rows].clamp_min(0), -part[here])
            lost -= (write[here] @ direct.read).double().cpu()
        before = Loss().at(logits, at, None)
        whole[here] = Loss().at(lost, at, None) - before
        some[here] = Loss().at(fewer, at, None) - before
    return (whole, some) if rows is None else (whole[rows], some[rows])


def _part(
    evidence: Evidence, direct: Direct, kind: str, place: Place, named: Int[Tensor, "row key"]
) -> Float[Tensor, "row query key"]:
    """What a head adds to the logit of the token that is named at each key, at its first
    occurrence, where it is attended to."""
    layer, head = place
    pattern = torch.cat([some[:, head] for some in evidence.patterns(kind, layer)]).double()
    same = (named[:, :, None] == named[:, None, :]) & (named >= 0)[:, None]
    share = pattern @ same.double()
    allowed = (pattern > 0).sum(-1, keepdim=True).clamp_min(1)
    first = ~(same & torch.ones_like(same[0]).tril(-1)).any(-1)
    attended = (share * allowed > 1) & first[:, None]
    columns = direct.read.T[named.clamp_min(0)].to(torch.float64).cpu()
    added = torch.einsum("rqd,rkd->rqk", direct.scaled_write(kind, place).double().cpu(), columns)
    added, count = added * attended, attended.sum(-1, keepdim=True)
    others = -added.sum(-1, keepdim=True) / (len(direct.read.T) - count).clamp_min(1)
    return (added - others) * attended
