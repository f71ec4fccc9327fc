"""Detect heads that make the tokens they attend to likelier, or less likely, in language models.

    behaviour   what the head writes, read through the final norm and the unembedding, raises the
                attended tokens' logits above those of other rows' tokens
                (:class:`interp.attention.behaviour.Copying`)
    cause       the loss rises without the head

Strength is signed: negative is suppression. The direct effect leaves out what later layers make of
it; a task's models are judged by their circuit instead (:mod:`probes.roles.detectors.circuits`).
"""

from __future__ import annotations

from collections.abc import Iterator

from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.examined import Examined


def copying_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test every head's direct effect on the tokens that it attends to."""
    evidence = of.evidence
    if evidence.profile.unit != "nats":
        return
    for place in evidence.heads:
        raised = evidence.score(place, "copying", evidence.profile.rows["after_same"])
        if raised is None:
            words = "what heads write cannot be read as logits: no weights, or no hook_z, are there"
            yield Lacking("copying", words)
            return
        verb = "lowers" if raised.effect < 0 else "raises"
        name = f"{verb} the logits of the tokens it attends to by"
        tests = [
            Test(name, abs(raised.effect), evidence.floors.copying, raised.p, family="copying")
        ]
        cause: list[Test] | None = None
        if of.effects is not None:
            cause = of.effects.without_head(place) if holds(tests) else []
        layer, head = place
        yield Found("head", layer, "copying", raised.score, tests, cause, head=head)
