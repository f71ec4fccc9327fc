"""What is lost when heads no longer raise the tokens that they attend to, and do all else they do.

    whole      logits′ = logits − Σ_h ℓ_h
    attended   logits′(i, t) = logits(i, t) − Σ_h (ℓ_h(i, t) − mean of ℓ_h(i, ·) over other tokens)

for tokens t that a head gives more of its attention at i than even attention would. ℓ_h is what
head h adds to the logits by itself (:mod:`probes.roles.direct`): an attended token is then neither
raised nor lowered against those that are not attended to. Of a head that maps tokens, t is the
image of the attended token; of one that copies what an earlier head fetched, what that head fetched
where it attends. What later layers make of what it writes stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.run import Loss
from probes.roles.direct import Direct
from probes.roles.evidence import Evidence, Place


@torch.no_grad()
def unraised(
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
    written = [direct.written(kind, place) for place in places]
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
    added = torch.einsum("rqd,rkd->rqk", direct.written(kind, place).double().cpu(), columns)
    added, count = added * attended, attended.sum(-1, keepdim=True)
    others = -added.sum(-1, keepdim=True) / (len(direct.read.T) - count).clamp_min(1)
    return (added - others) * attended
