"""Detect heads of a task's model whose attention follows from positions alone.

    A̅          the head's mean attention over one half of the rows, for the rows of the other half

    behaviour  with A̅ in place of its attention, at least .9 of what the head does to the output is
               kept: 1 − (change by A̅) / (change without the head)
               the loss is lower than with what the head writes turned at random
               (:mod:`probes.roles.turned`)
    cause      without the head the loss rises

The role does not say that it matters to which positions the head attends: where any attention would
do, as on rows of equal contents, its mean does as well. It does not say what the head writes, nor
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
from interp.run import Array, Mean, Replace, Run
from probes.roles.decision import Found, Lacking, Test
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place, has_readout
from probes.roles.examined import Examined, of_head
from probes.roles.turned import beyond_turned

_ROLE = "positional"


def position_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether what every head does follows from its mean attention.

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
    without = (Mean(evidence.site(place)),)
    cause = [replace(effects.worse(without, "without the head"), rows="given", alone=True)]
    floor = evidence.floors.tabled
    name = "of what it does to the output, kept with its mean attention"
    kept = Test(name, 0.0, floor)
    if cause[0].score >= cause[0].floor:
        edit = Replace(Site(place[0], "pattern", place[1]), Array(_mean_of_others(evidence, place)))
        whole = effects.change_test(without, floor, "without the head").score
        kept = effects.kept_output(whole, (edit,), name, floor)
    asked = kept.score >= floor
    beyond = beyond_turned(effects, Component("head", *place), asked=asked)
    return of_head(place, _ROLE, [kept, beyond], cause)


def _mean_of_others(evidence: Evidence, place: Place) -> Float[Tensor, "row query key"]:
    """Return the head's mean attention over the other half of the rows, for each row."""
    pattern, odd = _pattern(evidence.run("given"), place), slice(1, None, 2)
    means = torch.stack([pattern[odd].mean(0), pattern[::2].mean(0)])
    return means[torch.arange(len(pattern)) % 2]


def _pattern(run: Run, place: Place) -> Float[Tensor, "row query key"]:
    site = Site(place[0], "pattern", place[1])
    return run.at([site])[site].float().cpu()
