"""What heads write into the stream on the rows of some evidence: together, and on average.

    together   Σ over heads of what they write, less its mean over rows
    same       Σ |write − mean over rows|² ≤ 1e-9 Σ |write|²: the head writes the same on every row

Every layer is read once and kept. That a head writes the same on every row says nothing of other
rows, and not that the model could do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.interventions.components import Component, hook_of, replaced
from probes.roles.evidence import Evidence, Place
from probes.roles.runs import Edits

__all__ = ["Writes"]

_SAME = 1e-9
"""The largest share of a head's write that may differ between rows that it writes the same on."""


class Writes:
    """What the heads of some evidence's model write, each layer read once.

    Args:
        evidence: The evidence, with its model and rows.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._levels: dict[int, tuple[Bool[Tensor, " head"], Tensor]] = {}

    def together(
        self, places: Sequence[Place], kind: str = "given"
    ) -> Float[Tensor, "row pos feature"]:
        """What heads of a layer write together on rows of one kind, less its mean over rows."""
        layer, heads = places[0][0], [head for _, head in places]
        hook = hook_of(self.evidence.model, Component("head", *places[0]))
        value = self.evidence.runs(kind).written(layer, hook)[:, :, heads]
        if not hook.endswith("hook_result"):
            value = torch.einsum("rphk,hkd->rphd", value, self.evidence.model.W_O[layer][heads])
        value = value.double().sum(2)
        return value - value.mean(0)

    def same_on_all_rows(self, place: Place) -> bool:
        """Whether a head writes the same on every given row: its mean over rows changes nothing."""
        hook = hook_of(self.evidence.model, Component("head", *place))
        return hook in self.evidence.model.hook_dict and bool(self._level(place)[0][place[1]])

    def levelled(self, place: Place) -> Edits:
        """The edits with which a head writes its mean over rows and positions."""
        part = Component("head", *place)
        put = partial(_put, part=part, instead=self._level(place)[1])
        edits = [(hook_of(self.evidence.model, part), put)]
        return lambda rows: edits

    def _level(self, place: Place) -> tuple[Bool[Tensor, " head"], Tensor]:
        """Of a layer's heads, which write the same on every row; and their means over rows and
        positions."""
        layer = place[0]
        if layer not in self._levels:
            hook = hook_of(self.evidence.model, Component("head", *place))
            value = self.evidence.runs("given").written(layer, hook)
            own, axes = value.double(), (0, 1, 3)
            differs = (own - own.mean(0)).square().sum(axes)
            same = differs <= _SAME * own.square().sum(axes)
            self._levels[layer] = same, value.mean((0, 1), keepdim=True)
        return self._levels[layer]


def _put(value: Tensor, hook: Any, part: Component, instead: Tensor) -> Tensor:
    return replaced(value, hook, part, instead.to(value))
