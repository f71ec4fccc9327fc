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
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.clean_run import Edit
from interp.interventions.components import Component, hook_of
from probes.roles.effects import Effects
from probes.roles.evidence import Place
from probes.roles.runs import Edits, moved

__all__ = ["Input", "Reading", "missed", "names"]

Input = Literal["q", "k", "v"]

_KEPT: dict[Input, str] = {"q": "attn.hook_k", "k": "attn.hook_q", "v": "attn.hook_pattern"}
"""Each input → the hook that stays as it is when the input changes."""


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
        hooks = [f"blocks.{layer}.{name}" for layer in sorted(layers) for name in _KEPT.values()]
        return [name for name in hooks if name not in known]

    def attention(
        self, kind: str, place: Place, writers: Sequence[Place], read_as: Input
    ) -> Float[Tensor, "row query key"]:
        """The head's attention without what earlier heads wrote in its queries, or its keys."""
        hook = f"blocks.{place[0]}.attn.hook_pattern"
        return self._without(kind, place, writers, read_as, hook)[:, place[1]].cpu()

    def written(
        self, kind: str, place: Place, writers: Sequence[Place]
    ) -> Float[Tensor, "row query part"]:
        """What the head writes, at the hook at which that can be replaced, without what earlier
        heads wrote in its values."""
        hook = hook_of(self.evidence.model, Component("head", *place))
        return self._without(kind, place, writers, "v", hook)[:, :, place[1]]

    def unread(self, kind: str, place: Place, writers: Sequence[Place]) -> Edits:
        """The edits with which the head's values lack what earlier heads wrote."""
        part, by = Component("head", *place), self.written(kind, place, writers)
        hook = hook_of(self.evidence.model, part)

        def edits(rows: slice) -> list[Edit]:
            return [(hook, partial(_write, part=part, by=by[rows]))]

        return edits

    def loudest(self, kind: str, writers: Sequence[Place]) -> list[Place]:
        """As many other heads of the writers' layers, those that write most."""
        size: dict[Place, float] = {}
        for layer in sorted({layer for layer, _ in writers}):
            for place in self.evidence.heads:
                if place[0] == layer and place not in writers:
                    write = self.effects.writes.together([place], kind)
                    size[place] = float(write.square().sum())
        return sorted(size, key=lambda place: -size[place])[: len(writers)]

    @torch.no_grad()
    def _without(
        self, kind: str, place: Place, writers: Sequence[Place], read_as: Input, hook: str
    ) -> Tensor:
        layer, runs = place[0], self.evidence.runs(kind)
        stays = f"blocks.{layer}.{_KEPT[read_as]}"
        clean = runs.inside(layer, (stays,))[stays]
        write = torch.stack([self.effects.writes.together([one], kind) for one in writers]).sum(0)

        def edits(rows: slice) -> list[Edit]:
            return [
                (f"blocks.{layer}.hook_resid_pre", partial(moved, by=-write[rows])),
                (stays, partial(_put, by=clean[rows])),
            ]

        return runs.inside(layer, (hook,), edits)[hook]


def missed(alone: Mapping[Place, float], floor: float) -> tuple[Place, ...]:
    """Of heads that fetch the same, those that are missed by themselves: without which at least the
    floor is lost, and half of the most that is lost without one. All where none is missed.

    Args:
        alone: Each head → what is lost without its write alone.
        floor: The least that counts.
    """
    least = max(max(alone.values()) / 2, floor)
    return tuple(one for one in alone if alone[one] >= least) or tuple(alone)


def names(places: Sequence[Place]) -> str:
    """Heads in words: ``L0H1 and L0H3``."""
    return " and ".join(Component("head", *place).name for place in places)


def _put(value: Tensor, hook: Any, by: Tensor) -> Tensor:
    return by.to(value)


def _write(value: Tensor, hook: Any, part: Component, by: Tensor) -> Tensor:
    value = value.clone()
    value[:, :, part.head] = by.to(value)
    return value
