"""What a head reads of what earlier heads wrote: its layer is run again without that, and only one
of its inputs sees the difference.

    q, k   the head's attention, when its queries (or its keys) are made of the stream without
           what the earlier heads wrote, less its mean over rows
    v      what the head writes, when its values are, and its attention stays

The norm before the layer is computed anew; all between the heads stays as it is, so that this is
the direct path from the earlier heads to the input (path patching). Scores that read the stream
past queries and keys are not told apart by ``q`` and ``k``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.components import Component
from interp.run import Add, Array, Replace, Site, Swap
from interp.run.edits import Edits
from probes.roles.effects import Effects
from probes.roles.evidence import Place

Input = Literal["q", "k", "v"]

_KEPT: dict[Input, str] = {"q": "k", "k": "q", "v": "pattern"}
"""Each input → what stays as it is when the input changes."""


class Reading:
    """What heads of some evidence's model read of what earlier heads wrote.

    Args:
        effects: The effects of changing the model.
    """

    def __init__(self, effects: Effects) -> None:
        self.effects, self.evidence = effects, effects.evidence

    def lacks(self) -> list[str]:
        """The hooks that are needed and that the model does not have."""
        known, layers = self.evidence.model.hook_dict, {layer for layer, _ in self.evidence.heads}
        hooks = [Site(layer, kind).name for layer in sorted(layers) for kind in _KEPT.values()]
        return [name for name in hooks if name not in known]

    def attention(
        self, kind: str, place: Place, writers: Sequence[Place], read_as: Input
    ) -> Float[Tensor, "row query key"]:
        """The head's attention without what earlier heads wrote in its queries, or its keys."""
        return self._without(kind, writers, read_as, Site(place[0], "pattern", place[1])).cpu()

    def written(
        self, kind: str, place: Place, writers: Sequence[Place]
    ) -> Float[Tensor, "row query part"]:
        """What the head writes, at the hook at which that can be replaced, without what earlier
        heads wrote in its values."""
        return self._without(kind, writers, "v", self.evidence.site(place))

    def unread(self, kind: str, place: Place, writers: Sequence[Place]) -> Edits:
        """The edits with which the head's values lack what earlier heads wrote."""
        by = Array(self.written(kind, place, writers), f"it without {names(writers)} in its values")
        return (Replace(self.evidence.site(place), by),)

    def loudest(self, kind: str, writers: Sequence[Place]) -> list[Place]:
        """Other heads of the writers' layers, as many as writers: those that write most."""
        size: dict[Place, float] = {}
        for layer in sorted({layer for layer, _ in writers}):
            for place in self.evidence.heads:
                if place[0] == layer and place not in writers:
                    write = self.effects.writes.together([place], kind)
                    size[place] = float(write.square().sum())
        return sorted(size, key=lambda place: -size[place])[: len(writers)]

    def _without(self, kind: str, writers: Sequence[Place], read_as: Input, site: Site) -> Tensor:
        """What is at a site when its layer's input lacks what some heads wrote, and all that is
        made of it but the one input of the head stays."""
        write = torch.stack([self.effects.writes.together([one], kind) for one in writers]).sum(0)
        lacking = Add(Site(site.layer, "resid_pre"), Array(-write, f"less {names(writers)}"))
        stays = Swap(Site(site.layer, _KEPT[read_as]))
        return self.evidence.run(kind).with_(lacking, stays).at([site])[site]


def missed(alone: Mapping[Place, float], floor: float) -> tuple[Place, ...]:
    """Those of the heads that fetch the same that are missed by themselves: without which at least
    the floor is lost, and half of the most that is lost without one. All where none is missed.

    Args:
        alone: Each head → what is lost without its write alone.
        floor: The least that counts.
    """
    least = max(max(alone.values()) / 2, floor)
    return tuple(one for one in alone if alone[one] >= least) or tuple(alone)


def names(places: Sequence[Place]) -> str:
    """Heads in words: ``L0H1 and L0H3``."""
    return " and ".join(Component("head", *place).name for place in places)
