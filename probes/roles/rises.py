"""By how much the model does worse at each position when something in it is changed.

    nats       loss without − loss with it
    variance   |out′ − out|² / the mean squared distance of the output from its mean

Changes are named by what is taken away: a head's attention to some keys, or the head. A head may
lose nothing here because another does the same work; :mod:`probes.roles.groups` looks for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.interventions.ablation_effects import position_losses
from interp.interventions.components import Component, hook_of, replaced
from probes.roles.evidence import Evidence, Keys, Place
from probes.roles.runs import Edits, knock_out
from probes.roles.views import later

__all__ = ["Rises"]


class Rises:
    """Changes of the output of the model of some evidence, position by position.

    Args:
        evidence: The evidence, with its model and rows.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._nats = evidence.profile.unit == "nats"
        self._known: dict[tuple[str, tuple[Place, ...], str], Tensor] = {}
        self._spreads: dict[tuple[str, str], tuple[Tensor, float]] = {}

    def without(
        self, kind: str, places: Sequence[Place], name: str = ""
    ) -> Float[Tensor, "row pos"]:
        """By how much each position does worse without some heads, or without their attention to a
        key set; measured once, in the profile's unit."""
        key = kind, tuple(places), name
        if key not in self._known:
            self._known[key] = self.at(kind, self.away(kind, places, name))
        return self._known[key]

    def away(self, kind: str, places: Sequence[Place], name: str = "") -> Edits:
        """The edits on rows of one kind that take some heads' attention to a key set away, all at
        once; without a name of a key set the heads themselves are replaced by their means."""
        if name:
            return self.kept_from(places, [self.evidence.keys(kind, name, one) for one in places])
        return self.evidence.runs(kind).without([Component("head", *place) for place in places])

    def only(self, kind: str, places: Sequence[Place], name: str) -> Edits:
        """The edits that leave some heads nothing but their attention to a key set, at the queries
        that have such keys."""
        found = [self.evidence.keys(kind, name, one) for one in places]
        return self.kept_from(places, [~keys & keys.any(-1, keepdim=True) for keys in found])

    def exchanged(self, kind: str, places: Sequence[Place]) -> Edits:
        """The edits that replace what some heads write on a row by what they write on the next."""
        runs, parts = self.evidence.runs(kind), [Component("head", *place) for place in places]
        hooks = [hook_of(self.evidence.model, part) for part in parts]
        other = {
            hook: runs.written(part.layer, hook).roll(1, 0)
            for hook, part in zip(hooks, parts, strict=True)
        }
        return lambda rows: [
            (hook, partial(_exchanged, part=part, by=other[hook][rows]))
            for hook, part in zip(hooks, parts, strict=True)
        ]

    def averaged(self, kind: str, places: Sequence[Place]) -> Edits:
        """The edits that replace some heads' attention by its mean over rows of one kind."""
        edits = []
        for layer in sorted({layer for layer, _ in places}):
            hook = f"blocks.{layer}.attn.hook_pattern"
            heads = [head for at, head in places if at == layer]
            mean = self.evidence.runs(kind).inside(layer, (hook,))[hook][:, heads].mean(0)
            edits.append((hook, partial(_replaced, heads=heads, by=mean)))
        return lambda rows: edits

    def kept_from(self, places: Sequence[Place], keys: Sequence[Keys]) -> Edits:
        """The edits that take some heads' attention away from some keys, for each head its own."""
        pairs = zip(places, keys, strict=True)
        causal = self.evidence.causal
        edits = [knock_out(*place, own, causal=causal) for place, own in pairs]
        return lambda rows: [edit for some in edits for edit in some(rows)]

    def at(self, kind: str, edits: Edits) -> Float[Tensor, "row pos"]:
        """By how much each position of rows of one kind does worse, in the profile's unit."""
        if self._nats:
            return self.losses(kind, edits)
        runs = self.evidence.runs(kind)
        found = [
            (output.double() - runs.output(rows)).square().sum(-1).cpu()
            for rows, output, _ in runs.changed(edits)
        ]
        return torch.cat(found) / (self.spread(kind, "all")[1] or 1.0)

    def losses(self, kind: str, edits: Edits) -> Float[Tensor, "row pos"]:
        """By how much the loss rises at each position of rows of one kind."""
        runs = self.evidence.runs(kind)
        after = [
            position_losses(output, runs.batch.targets[rows])
            for rows, output, _ in runs.changed(edits)
        ]
        return torch.cat(after) - runs.losses

    def spread(self, kind: str, over: str) -> tuple[Bool[Tensor, "row pos"], float]:
        """Where the output counts, and its mean squared distance there from its mean.

        Args:
            kind: The kind of rows.
            over: ``all`` scored positions, or the ``later`` ones.
        """
        if (kind, over) not in self._spreads:
            scored, runs = self.evidence.batch(kind).mask, self.evidence.runs(kind)
            late = scored & later(scored.shape[1])
            scored = late if over == "later" and bool(late.any()) else scored
            count, total = max(int(scored.sum()), 1), torch.zeros((), dtype=torch.float64)
            mean = sum(runs.output(r)[scored[r]].sum(0) for r in runs.blocks()) / count
            for rows in runs.blocks():
                total += (runs.output(rows)[scored[rows]] - mean).square().sum()
            self._spreads[kind, over] = scored, float(total / count)
        return self._spreads[kind, over]


def _exchanged(value: Tensor, hook: Any, part: Component, by: Tensor) -> Tensor:
    return replaced(value, hook, part, by.to(value))


def _replaced(pattern: Tensor, hook: Any, heads: Sequence[int], by: Tensor) -> Tensor:
    pattern = pattern.clone()
    pattern[:, heads] = by.to(pattern)
    return pattern
