"""What heads write into the residual stream on the rows of some evidence.

    together   the sum over heads of what they write, minus its mean over rows
    same       Σ |write − mean over rows|² ≤ 1e-9 Σ |write|²: the head writes the same on every row

That a head writes the same on every row says nothing of other rows, and does not show that the
model could do without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.interventions.components import Component
from interp.run import Add, Array, Site
from probes.roles.evidence import Evidence, Place

_SAME = 1e-9
"""A head's write counts as the same on every row if at most this share of its sum of squares is
variation between rows. Less is rounding."""


class Writes:
    """The outputs of a model's attention heads on the rows of the evidence.

    Only the outputs of the layer and kind of rows that were requested last are cached.

    Args:
        evidence: The evidence, with its model and rows.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._kept: dict[tuple[str, Site], Tensor] = {}
        self._same: dict[tuple[str, int], Bool[Tensor, " head"]] = {}

    def of_layer(self, kind: str, layer: int) -> Float[Tensor, "row pos head part"]:
        """Return the output of each head of a layer, at the hook site at which it can be replaced.

        Args:
            kind: The kind of rows.
            layer: The layer.

        Returns:
            ``z`` (before ``W_O``) or, for models whose spec has ``identity_ov``, what each head
            writes to the stream.
        """
        site = self.evidence.site((layer, 0)).every_head
        if (kind, site) not in self._kept:
            self._kept = {(kind, site): self.evidence.run(kind).at([site])[site]}
        return self._kept[kind, site]

    def together(
        self, places: Sequence[Place], kind: str = "given"
    ) -> Float[Tensor, "row pos feature"]:
        """Return the summed output of some heads on the rows of one kind, minus its mean over rows.

        Args:
            places: The heads as (layer, head), all of one layer.
            kind: The kind of rows.
        """
        layer, heads = places[0][0], [head for _, head in places]
        value = self.of_layer(kind, layer)[:, :, heads]
        if self.evidence.site(places[0]).kind == "z":
            value = torch.einsum("rphk,hkd->rphd", value, self.evidence.model.W_O[layer][heads])
        value = value.detach().double().sum(2)
        return value - value.mean(0)

    def of_part(self, part: Component) -> Float[Tensor, "row pos feature"]:
        """Return what a head or an FFN writes on the given rows, minus its mean over rows."""
        if part.kind == "head":
            return self.together([(part.layer, part.head)]).cpu()
        site = Site(part.layer, "mlp_out")
        written = self.evidence.run("given").at([site])[site].double().cpu()
        return written - written.mean(0)

    def at_end(self, by: Tensor) -> Add:
        """Return the edit that adds a tensor to the residual stream after the last layer.

        Args:
            by: What is added, ``[row, pos, d_model]``.
        """
        last = Site(self.evidence.model.cfg.n_layers - 1, "resid_post")
        return Add(last, Array(by, "what is written straight to it"))

    def keep_at_end(self, kind: str, places: Sequence[Place]) -> Add:
        """Return the edit that adds what heads of any layers write to the stream after the last
        layer.

        Made together with the heads' ablation, it removes their outputs for later layers alone: the
        unembedding still reads them.

        Args:
            kind: The kind of rows.
            places: The heads, as (layer, head).
        """
        layers = sorted({layer for layer, _ in places})
        parts = [self.together([p for p in places if p[0] == at], kind) for at in layers]
        return self.at_end(torch.stack(parts).sum(0))

    def same_on_all_rows(self, place: Place, kind: str = "given") -> bool:
        """Return whether a head's output at each position is the same in all rows of a kind, up to
        rounding.

        Mean ablation, or resampling from another row, cannot change anything then. In a causal
        model positions after the last scored one are ignored. False if the model has no hook for
        the head's output.

        Args:
            place: Layer and number of the head.
            kind: The kind of rows.
        """
        layer, head = place
        if self.evidence.site(place).name not in self.evidence.model.hook_dict:
            return False
        if (kind, layer) not in self._same:
            own, axes = self.of_layer(kind, layer).double(), (0, 1, 3)
            if self.evidence.causal:  # what stands behind the last scored position is not used
                scored = self.evidence.batch(kind).mask.any(0).nonzero()
                own = own[:, : int(scored.max()) + 1] if len(scored) else own
            differs = (own - own.mean(0)).square().sum(axes)
            self._same[kind, layer] = differs <= _SAME * own.square().sum(axes)
        return bool(self._same[kind, layer][head])
