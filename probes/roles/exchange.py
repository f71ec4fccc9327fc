"""The cause by interchange intervention: a head's output, or its attention pattern, is exchanged
between rows, and the answers change as if a latent variable had been exchanged.

    share   how far the answers move towards those of the exchanged latent; 1 is all the way
    leak    how far answers move that should stay the same

This is :func:`probes.locate.locate` for one head and one latent. A large share says that the latent
passes through the head; it does not say that it passes nowhere else.
"""

from __future__ import annotations

from math import isfinite, isnan, nan

import torch

from interp.hooks.site import Site
from interp.interventions.components import Component, hook_of
from interp.tasks.counterfactual import Variable
from probes.exchange import Exchanged
from probes.locate import LEAST_PAIRS, exchange_parts
from probes.roles.decision import Test
from probes.roles.evidence import Evidence, Place


def exchange_tests(
    evidence: Evidence, place: Place, circuit: str, variable: Variable
) -> list[Test]:
    """Test by interchange intervention whether a head carries a latent variable.

    The head's activation on one of the given rows is replaced by that on another row, and the
    output is compared with the answer that the task has with the other row's latent.

    Args:
        evidence: The model and its rows.
        place: The head, as (layer, head).
        circuit: What is exchanged: ``output`` (what the head writes) or ``attention`` (its
            pattern).
        variable: The latent variable.

    Returns:
        Two tests. The score of the first is the share of the way that answers move towards the
        expected ones; that of the second is 1 minus the leak, which is how far answers move that
        should stay. The second is left out if fewer than 16 pairs have an answer that should stay.
        If fewer than 16 pairs differ in the latent, or if the clean outputs already equal the
        expected answers, the only test returned is one marked as not made.
    """
    model, floor = evidence.model, evidence.floors.exchange
    part, batch = Component("head", *place), evidence.views["given"].batch
    pattern = Site(place[0], "pattern").name
    hook = pattern if circuit == "attention" else hook_of(model, part)
    one = Exchanged(part.name, circuit, part.layer, (part.head,), ((hook, (part.head,)),))
    with torch.no_grad():
        (found,) = exchange_parts(model, batch, variable, [one], seed=evidence.seed + 1)
    if found["pairs"] < LEAST_PAIRS:
        return [Test.too_few(f"pairs that differ in {variable.name}", LEAST_PAIRS, floor)]
    if not isfinite(found.get("share", nan)):
        words = f"answers are those of an exchanged {variable.name} before any exchange"
        return [Test(words, 0.0, floor, 1.0, untested=words)]
    moved = "its attention" if circuit == "attention" else "it"
    name = f"exchanged between rows {moved} moves answers as {variable.name} would, by a share "
    shares = Test(f"{name}of", found["share"], floor, found["p"], found["low"], found["high"])
    if isnan(found["leak"]):
        return [shares]
    return [shares, Test("of the answers that must stay, kept", 1 - found["leak"], floor)]
