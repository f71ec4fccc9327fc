"""Detect heads of a task's model whose attention is nearly the same on all rows.

    A           the head's attention, at the queries that can reach a scored output and have at
                least two keys
    A̅           its mean over one half of the rows, for the rows of the other half

    behaviour  A is not even: its distance from even attention is at least .1
               1 − Σ|A − A̅| / Σ(|A| + |A̅|), its sameness, is at least .8
               with A̅ in place of A, at least .9 of what the head does to the output is kept:
               1 − (change by A̅) / (change without the head)
               the loss is lower than with what the head writes turned at random
               (:mod:`probes.roles.turned`)
    cause      without the head the output changes or, if it changes by less than its floor, the
               loss rises (p is doubled, for the output was looked at first)

The role does not say that it matters to which positions the head attends, nor what it writes, nor
that its attention would be the same on rows of another kind. Heads that attend to one offset, to a
window, or to the place of a memory have stricter roles. Language models are tested otherwise
(:mod:`probes.roles.detectors.attention`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.site import Site
from interp.interventions.components import Component
from interp.run import Array, Mean, Replace
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place, has_readout
from probes.roles.examined import Examined, of_head
from probes.roles.fitting import read_places
from probes.roles.turned import beyond_turned

_ROLE = "positional"


def position_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether every head attends nearly alike on all rows, and does by that what it does.

    Yields:
        A finding for each head, whether its tests pass or not; or why the role could not be tested
        for. Nothing for language models, and without a model.
    """
    evidence, effects = of.evidence, of.effects
    if effects is None or evidence.profile.unit == "nats":
        return
    if not has_readout(evidence.model):
        yield Lacking(_ROLE, "the model does not name what heads write")
        return
    if not evidence.targets:
        yield Lacking(_ROLE, "without targets there is no loss that could rise")
        return
    for place in evidence.heads:
        yield _finding(evidence, effects, place)


def _finding(evidence: Evidence, effects: Effects, place: Place) -> Found:
    layer, head = place
    pattern, floors = torch.cat(evidence.patterns("given", layer))[:, head], evidence.floors
    mean = _mean_of_others(pattern)
    alike = _sameness(evidence, layer, pattern, mean)
    tests = [Test("sameness of its attention on all rows", alike, floors.selected)]
    even = evidence.share(place, "uniform")
    if even is not None:
        tests.append(Test("distance from even attention", 1 - even.score, 1 - floors.even))
    cause = _cause(effects, place) if holds(tests) else []
    name = "of what it does to the output, kept with its mean attention"
    kept = Test(name, 0.0, floors.tabled)
    if cause and cause[-1].score >= cause[-1].floor:
        edit = Replace(Site(layer, "pattern", head), Array(mean, "its mean attention"))
        without = (Mean(evidence.site(place)),)
        kept = effects.kept_output(without, (edit,), name, floors.tabled)
    asked = kept.score >= kept.floor
    beyond = beyond_turned(effects, Component("head", *place), asked=asked)
    return of_head(place, _ROLE, [*tests, kept, beyond], cause, kept.score)


def _cause(effects: Effects, place: Place) -> list[Test]:
    changed = effects.without_head(place)
    if changed[-1].score >= changed[-1].floor:
        return changed
    rise = effects.worse((Mean(effects.evidence.site(place)),), "without the head")
    return [replace(rise, p=min(1.0, 2 * rise.p))] if rise.score >= rise.floor else changed


def _mean_of_others(pattern: Float[Tensor, "row query key"]) -> Float[Tensor, "row query key"]:
    """Return the mean over the other half of the rows, for each row."""
    means = torch.stack([pattern[1::2].mean(0), pattern[::2].mean(0)])
    return means[torch.arange(len(pattern)) % 2]


def _sameness(evidence: Evidence, layer: int, pattern: Tensor, mean: Tensor) -> float:
    """Return how near attention is to its mean, at the queries that count: 1 if it is the same."""
    queries = read_places(evidence.run("given"), layer) & ((pattern.abs() > 0).sum(-1) > 1)
    off = (pattern - mean).abs()[queries].sum()
    size = (pattern.abs() + mean.abs())[queries].sum()
    return float(1 - off / size) if size > 0 else 0.0
