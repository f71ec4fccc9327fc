"""The direct effect of a head: what its output adds to the logits at the same position, through the
final norm and the unembedding.

    logits   write / scale · R,  R the unembedding with the norm's gain, centred over the vocabulary

The scale is the final norm's denominator in the clean pass, held fixed; what later layers compute
from the write is left out. The same formula gives the loss when heads no longer raise the tokens
that they attend to and all else they do stays in place (:func:`direct_loss_rises`):

    whole      logits′ = logits − Σ_h ℓ_h
    attended   logits′(i, t) = logits(i, t) − Σ_h (ℓ_h(i, t) − mean of ℓ_h(i, ·) over other tokens)

for the tokens t to which a head gives more attention at i than even attention would. ℓ_h is what
head h adds to the logits; the edit ``attended`` sets what it adds to an attended token to the mean
of what it adds to the other tokens. For a head that maps tokens, t is the image of the attended
token; for a head that copies what an earlier head fetched, t is the token that the earlier head
fetched at the attended position.
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
    """The direct effects of heads on the logits, for the model and rows of some evidence.

    Args:
        evidence: The evidence, whose model has an unembedding. Without a final norm the scale is 1.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.read, self._writes = unembedding(evidence.model), Writes(evidence)
        self._scales: dict[str, Tensor] = {}

    @torch.no_grad()
    def scaled_write(
        self, kind: str, place: Place, value: Float[Tensor, "row query part"] | None = None
    ) -> Float[Tensor, "row query feature"]:
        """Return what a head writes to the residual stream, divided by the final norm's scale.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            value: The activation at the head's hook, ``self.evidence.site(place)``; by default that
                of the clean pass.
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
        """Return what a head adds to the logits of some tokens, minus what it adds to the mean
        logit.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            tokens: The ids of the tokens.
        """
        return (self.scaled_write(kind, place) @ self.read[:, tokens]).double().cpu()

    @torch.no_grad()
    def at(
        self, kind: str, place: Place, tokens: Int[Tensor, "row query"]
    ) -> Float[Tensor, "row query"]:
        """Return what a head adds to one token's logit at each query, minus what it adds to the
        mean logit.

        Args:
            kind: The kind of rows.
            place: Layer and number of the head.
            tokens: The token whose logit is read at each query.
        """
        return (self.scaled_write(kind, place) * self.read.T[tokens]).sum(-1).double().cpu()

    @torch.no_grad()
    def _scale(self, kind: str) -> Tensor:
        """Return the final norm's denominators, ``[row, query, 1]``; a one if the model has no such
        norm."""
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
    """Compute by how much the loss rises at each scored position without heads' direct effects.

    Args:
        evidence: The evidence, whose model has an unembedding.
        kind: The kind of rows.
        places: The heads, (layer, head), whose direct effects are removed together.
        named: Head → the token that it raises for each of its keys, −1 for none. A head that is
            missing here raises the tokens at its keys.
        rows: The numbers of the rows; all by default.

    Returns:
        The rise in nats with the heads' direct effects removed from all logits, and the rise with
        them removed from the logits of attended tokens alone (see the module); 0 at positions that
        are not scored.
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
    """Return by how much a head raises the logit of the token named at each key above the other
    logits.

    0 where the head gives the token no more attention than even attention would, and at keys whose
    token is named at an earlier key already.
    """
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
