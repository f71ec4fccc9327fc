"""Detect heads that read what earlier heads wrote: in their values, their keys or their queries.

    V            what an earlier head fetched is copied (:mod:`probes.roles.detectors.relaying`)
    K, Q         it is compared with a token (:mod:`probes.roles.detectors.matching`)

What heads fetch, and what they may read, is looked at for both at once, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from probes.roles.decision import Found, Lacking
from probes.roles.detectors.matching import Match, closest, matched
from probes.roles.detectors.relaying import Relayed, Rises, relayed
from probes.roles.evidence import has_readout
from probes.roles.examined import Examined
from probes.roles.fetched import Fetching
from probes.roles.reading import Reading

_ROLES = ("virtual-copying", "composed-equality")


def composition_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test what every head does with what earlier heads fetched."""
    evidence, effects = of.evidence, of.effects
    if effects is None or not has_readout(evidence.model):
        why = "no weights are named that heads' writes could be read with"
        yield from (Lacking(role, why) for role in _ROLES)
        return
    reading, fetching = Reading(effects), Fetching(evidence)
    lacking = reading.lacks()
    if lacking:
        why = f"the model has no hook {lacking[0]}"
        yield from (Lacking(role, why) for role in _ROLES)
        return
    rises, kind = Rises(evidence, fetching), evidence.profile.rows["matched"]
    copied: list[Relayed] = []
    compared: list[Match] = []
    for layer in sorted({layer for layer, _ in evidence.heads}):
        copied += rises.best(layer)
        compared += closest(evidence, fetching, layer)
        fetching.by(kind, layer)  # while the layer's attention is at hand
    yield from (relayed(effects, reading, rises, one) for one in copied)
    yield from (matched(effects, reading, fetching, one) for one in compared)
