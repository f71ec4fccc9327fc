"""Detect nested rounds, layer by layer.

    nested-round r   behaviour  the layer is the first after whose attention x_{t−t_r} is decodable
                     cause      it no longer is when round r − 1 is patched away: the heads of the
                                layer where that round's content appeared give their mean over
                                rows. Round 1 has its location for a round before: the FFN that
                                computes it is patched away or, where none does, what the location
                                predicts of the stream that enters the layer comes from another row

A memory in which no round follows another (a single one, or two at once) is not nested: where the
embedding supplies its location it stays a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from interp.interventions.components import Component, components
from interp.tasks.base import Memory
from probes.roles.decision import Found, holds
from probes.roles.examined import Examined
from probes.roles.reader import Reader


def round_roles(of: Examined) -> list[Found]:
    """Test at which layer each round of nested memories is extracted."""
    reader, nested = of.reader, [memory for memory in of.memories if memory.round is not None]
    if reader is None:
        return []
    sites = {m.name: reader.first_site(m.name) for m in nested}
    return [found for m in nested for found in _round(reader, m, nested, sites)]


def _round(
    reader: Reader,
    memory: Memory,
    nested: Sequence[Memory],
    sites: Mapping[str, tuple[int, str] | None],
) -> Iterator[Found]:
    site = sites[memory.name]
    if site is None or not site[1].endswith("resid_mid"):
        return
    layer, mid = site
    patched = _before(reader, memory, nested, sites)
    cause = [reader.lost(mid, memory.name, patched, reader.floors.stops)] if patched else []
    deeper = any((other.round or 0) > 1 for other in nested)
    if memory.round == 1 and deeper and not (cause and holds(cause)):
        cause = [reader.lost_without_location(layer, mid, memory.name, str(memory.location))]
    yield Found(
        "layer",
        layer,
        "nested-round",
        cause[0].score if cause else 0.0,
        [reader.present(mid, memory.name)],
        cause,
        target=memory.name,
    )


def _before(
    reader: Reader,
    memory: Memory,
    nested: Sequence[Memory],
    sites: Mapping[str, tuple[int, str] | None],
) -> list[Component]:
    """The components to patch away: those of the round before, in an earlier layer."""
    own = sites[memory.name]
    if own is None:
        return []
    if memory.round == 1:
        location = str(memory.location)
        found = reader.first_site(location)
        if found is None or not found[1].endswith("resid_post") or found[0] >= own[0]:
            return []
        return [Component("ffn", found[0])]
    earlier = [sites[m.name] for m in nested if m.round == (memory.round or 0) - 1]
    layers = {site[0] for site in earlier if site is not None and site[0] < own[0]}
    return [p for p in components(reader.model) if p.kind == "head" and p.layer in layers]
