"""Is the loss lower with what a component writes than with the same turned at random?

    w        what a head or an FFN writes into the residual stream, less its mean over rows
    turned   w R in place of w, for a random orthogonal R, the same on all rows and at all
             positions
    p        how far out the model's own loss is among the losses with such R: 50 of them, and 200
             more if p is then below .1; on the first 32 rows that have scored positions

What a fresh component writes has hardly a preferred direction, so its loss is about as likely as
any turned one to be the lowest. A small p says that the rest of the model is made for what this
component writes, or the component for the rest. Of a random component behind which a readout was
fitted the first is true: it is found as well.

In a stream of few dimensions many R leave w nearly where it was: in four or fewer a component that
is needed may not be found where targets are noisy. The smallest p is .0004, so that
one component alone among 25 that are tested cannot be significant at a false-discovery rate of .01.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from interp.interventions.components import Component
from interp.run import Add, Array, Edit, Run, Site
from probes.roles.decision import Test
from probes.roles.effects import Effects
from probes.roles.reinit_null import beyond_draws

_OUTPUTS = {"head": "attn_out", "ffn": "mlp_out"}
_DRAWS, _ROWS = 250, 32
_BEYOND = 0.997
"""The least 1 − p. There is no other floor, since chance is all that this test rules out."""


def beyond_turned(effects: Effects, part: Component, *, asked: bool) -> Test:
    """Test whether the loss is lower than with what a component writes turned at random.

    Args:
        effects: The effects of edits on the model; the targets of its rows are known.
        part: The head or FFN.
        asked: Whether to measure. Otherwise the test fails, and counts in its family.
    """
    p = _p(effects, part) if asked else 1.0
    return Test("loss below that with what it writes turned at random (1 − p)", 1 - p, _BEYOND, p)


def _p(effects: Effects, part: Component) -> float:
    evidence, site = effects.evidence, Site(part.layer, _OUTPUTS[part.kind])
    batch = evidence.batch("given")
    rows = batch.mask.any(1).nonzero()[:_ROWS, 0]
    own, run = effects.writes.of_part(part)[rows], Run(evidence.model, batch[rows])
    generator = torch.Generator().manual_seed(evidence.seed)

    def rotations() -> Iterator[Edit]:
        for _ in range(_DRAWS):
            drawn = torch.randn(2 * own.shape[-1:], generator=generator, dtype=own.dtype)
            basis, upper = torch.linalg.qr(drawn)
            yield Add(
                site, Array(own @ (basis * upper.diagonal().sign()) - own, "turned at random")
            )

    def score(*edits: Edit) -> list[float]:
        changed = run.with_(*edits)
        loss = float(changed.by_row(changed.value()).double().mean())
        run.forget()
        return [1 / max(loss, 1e-12)]

    return beyond_draws(score(), map(score, rotations())).p
