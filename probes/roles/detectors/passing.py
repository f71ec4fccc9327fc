"""Detect FFNs through which what heads wrote, or the token itself, reaches the output.

    source     heads  what all heads before the FFN wrote, minus its mean over rows: S
               token  the embedding at the position, minus its mean over rows: S
    w          what the FFN writes, FFN(norm u), for the stream u that it reads
    blind      w′ = FFN(norm (u − S)), what it would write if S were removed from its input alone;
               everything else is as in the clean run (path patching)

    behaviour  |w′ − w|² is at least a tenth of |w − mean w|²
               the output changes when w becomes w′
               at least half of that change also appears when S is removed from the whole stream
               the change is larger than with fresh FFNs in its place, from whose input S is
               removed as well, and whose output is scaled to change as much (250 of them,
               1 − p ≥ .997)
    cause      the output changes without the FFN

The third line is about FFNs that remove the source from the stream. Such an FFN, when blind to the
source, leaves it in the stream and the output changes, but nothing was passed on: without S in the
stream there is nothing to remove.

If targets are next tokens, the loss must rise instead of a change of the output, and only models
with few weights are tested, since hundreds of fresh FFNs are run.

The test does not say what the FFN computes from its source: an FFN that computes an answer passes
it on, too, and has that stricter role (:mod:`probes.roles.detectors.ffns`). A source that does not
reach the output through this FFN may reach it on other paths. After an early FFN, later layers read
nearly every direction, so that fresh FFNs change the output as much and the role is not found. The
smallest p of 250 draws is .0004: in a model of thirteen FFNs or more, a single FFN that passes
something on cannot be significant at a false-discovery rate of .01.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.capture import model_device
from interp.hooks.site import Site
from interp.interventions.components import Component, components, read_by_ffn
from interp.run import Array, Mean, Replace, output_site
from interp.run.edits import Edits
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, has_readout
from probes.roles.examined import Examined
from probes.roles.fresh_ffns import (
    FreshFFNs,
    beyond_fresh,
    has_own_ffns,
    has_own_layers,
    not_asked,
)

_ROLE = "passing-on"
_BEYOND = 0.997
"""The least 1 − p: any FFN behaves so, each is asked for two sources, and chance alone decides."""
_ROWS = 16
"""The first rows with scored positions, on which fresh FFNs are run."""
_WEIGHTS = 2**18
"""The most weights of a language model whose FFNs are asked."""

Source = Float[Tensor, "row pos d_model"]


def passing_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether what heads wrote, or the token at the position, reaches the output through every
    FFN.

    Yields:
        A finding for each FFN and source, whether its tests pass or not; or why the role could not
        be tested for.
    """
    evidence, effects = of.evidence, of.effects
    parts = [part for part in components(evidence.model) if part.kind == "ffn"] if effects else []
    if effects is None or not parts:
        return
    if not (has_readout(evidence.model) and has_own_ffns(evidence.model)):
        yield Lacking(_ROLE, "the model does not name its FFNs and what heads write")
        return
    weights = sum(weight.numel() for weight in evidence.model.parameters())
    if evidence.profile.unit == "nats" and weights > _WEIGHTS:
        words = f"hundreds of fresh FFNs are run, and the model has {weights:,} weights; "
        yield Lacking(_ROLE, f"{words}at most {_WEIGHTS:,} can be asked")
        return
    some = evidence.batch(_kind(evidence)).inputs[:_ROWS]
    if not has_own_layers(evidence.model, some.to(model_device(evidence.model))):
        yield Lacking(_ROLE, "the model's layers cannot be run one after the other")
        return
    start = Site(0, "resid_pre")
    entered = evidence.run(_kind(evidence)).at([start])[start].double().cpu()
    token = entered - entered.mean(0)
    for part in parts:
        one = _Passing(evidence, effects, part)
        if not one.is_run_apart:
            yield Lacking(_ROLE, f"{part.name} cannot be run apart from its layer")
            return
        heads = _earlier_writes(evidence, effects, part.layer)
        if heads is not None:
            yield one.finding("heads", heads)
        yield one.finding("token", token)


def _kind(evidence: Evidence) -> str:
    """Return the kind of rows on which FFNs are tested."""
    return "given" if "given" in evidence.views else evidence.profile.rows["own"]


def _earlier_writes(evidence: Evidence, effects: Effects, layer: int) -> Source | None:
    """Return the sum of what all heads up to a layer's attention wrote, minus its mean over rows;
    None if there are no such heads."""
    layers = sorted({at for at, _ in evidence.heads if at <= layer})
    places = [[place for place in evidence.heads if place[0] == at] for at in layers]
    written = [effects.writes.together(some, _kind(evidence)) for some in places]
    return torch.stack(written).sum(0).cpu() if written else None


class _Passing:
    """The tests of one FFN for passing on a source.

    Attributes:
        is_run_apart: Whether what the FFN writes can be reproduced from the stream that it reads
            alone.
    """

    def __init__(self, evidence: Evidence, effects: Effects, part: Component) -> None:
        self._evidence, self._effects, self._part = evidence, effects, part
        self._out, read = Site(part.layer, "mlp_out"), read_by_ffn(evidence.model, part.layer)
        self._ffns = FreshFFNs(evidence.model, seed=evidence.seed)
        self._kind = _kind(evidence)
        found = evidence.run(self._kind).at([read, self._out])
        self._stream, self._written = (found[site].cpu() for site in (read, self._out))
        self.is_run_apart = self._ffns.writes(part.layer, self._stream, self._written)

    def finding(self, name: str, source: Source) -> Found:
        """Test one source.

        Args:
            name: ``heads`` or ``token``.
            source: The source S, which is removed from the FFN's input.
        """
        floors, scored = self._evidence.floors, self._evidence.batch(self._kind).mask
        own, unseen = self._written, self._stream - source.to(self._stream)
        changed = self._ffns.ffn_output(self._part.layer, unseen)
        size = (own - own.mean(0)).double()[scored].square().sum().clamp_min(1e-30)
        share = float((changed - own).double()[scored].square().sum() / size)
        words = {"heads": "what heads wrote", "token": "its token"}[name]
        tests = [Test(f"of what it writes depends on {words}", min(share, 1.0), floors.mixed)]
        strength, cause = share, list[Test]()
        if holds(tests):
            edit = Replace(self._out, Array(changed, f"what it writes without {words}"))
            tests.append(self._effect_test((edit,), f"where the FFN alone does not see {words}"))
            strength, cause = tests[1].score, [self._without()]
        asked = bool(cause) and holds([*tests, *cause])
        tests += self._beyond(source) if asked else [not_asked()]
        return Found("ffn", self._part.layer, _ROLE, strength, tests, cause, target=name)

    def _beyond(self, source: Source) -> list[Test]:
        """Test whether the change of the output is larger than with fresh FFNs, and whether it also
        appears when the source is removed from the whole stream."""
        batch = self._evidence.batch(self._kind)
        rows = batch.mask.any(1).nonzero()[:_ROWS, 0]
        some = (one[rows] for one in (batch.inputs, self._stream, source, batch.mask))
        found, same = self._ffns.compare_change(self._part.layer, *some)
        words = "of that change is there, too, where it is taken out of the stream as a whole"
        floor = self._evidence.floors.passed
        return [Test(words, min(same, 1.0), floor), beyond_fresh(found.p, _BEYOND)]

    def _without(self) -> Test:
        """Test whether the output changes, or the loss rises, when the FFN is mean-ablated."""
        edit = Mean(output_site(self._evidence.model, self._part.layer, -1))
        return self._effect_test((edit,), "without the FFN")

    def _effect_test(self, edits: Edits, words: str) -> Test:
        """Test whether edits change the output or, if targets are next tokens, raise the loss."""
        if self._evidence.profile.unit == "nats":
            return self._effects.worst(words, {self._kind: edits})
        name = f"{words} the output changes by a share of its variance of"
        return self._effects.change_test(edits, self._evidence.floors.memory_change, name)
