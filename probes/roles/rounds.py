"""Nested rounds, layer by layer, and the FFNs that read out (SCIENCE §5).

    nested-round r   behaviour  the layer is the first after whose attention x_{t−t_r} is decodable
                     cause      it no longer is when round r − 1 is patched away: the heads of the
                                layer where that round's content appeared (for round 1: the FFN
                                that computes its location) give their mean over rows
    readout of f     behaviour  f is linearly decodable after the FFN and less so before, while a
                                nonlinear probe reads it before: the arguments are there
                     cause      without the FFN f is less decodable, its arguments are kept, and
                                the output changes

A location that the embedding supplies has no FFN to patch: round 1 stays a candidate then. The
nonlinear control says that the FFN's input determines f, not that the FFN alone could compute it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from interp.heads.effects import Component, components
from interp.heads.nulls import decodability_null
from probes.controls import decode_nonlinearly
from probes.roles.decision import Found, Test
from probes.roles.extraction import Memory, Reader

__all__ = ["RoundFloors", "readout_roles", "round_roles"]


@dataclass(frozen=True)
class RoundFloors:
    """The least that counts.

    Attributes:
        decodable: r² that counts as decodable.
        gain: Rise of r² at a readout.
        stops: Fall of r² that counts as no longer decodable.
        drop: Fall of r² without a readout.
        kept: Largest fall of an argument's r² that counts as kept.
        change: Of the output, as a share of its variance.
    """

    decodable: float = 0.9
    gain: float = 0.2
    stops: float = 0.4
    drop: float = 0.2
    kept: float = 0.1
    change: float = 0.05


def round_roles(
    reader: Reader, memories: Sequence[Memory], *, floors: RoundFloors | None = None
) -> list[Found]:
    """At which layer each round of nested memories is extracted."""
    floors = floors or RoundFloors()
    nested = [memory for memory in memories if memory.round is not None]
    sites = {m.name: reader.first_site(m.name, floors.decodable) for m in nested}
    return [found for m in nested for found in _round(reader, m, nested, sites, floors)]


def _round(
    reader: Reader,
    memory: Memory,
    nested: Sequence[Memory],
    sites: Mapping[str, tuple[int, str] | None],
    floors: RoundFloors,
) -> Iterator[Found]:
    site = sites[memory.name]
    if site is None or not site[1].endswith("resid_mid"):
        return
    layer, mid = site
    patched = _before(reader, memory, nested, sites, floors)
    cause = [reader.lost(mid, memory.name, patched, floors.stops)] if patched else []
    yield Found(
        "layer", layer, "nested-round", cause[0].score if cause else 0.0,
        [reader.present(mid, memory.name, floors.decodable)], cause, target=memory.name,
    )  # fmt: skip


def _before(
    reader: Reader,
    memory: Memory,
    nested: Sequence[Memory],
    sites: Mapping[str, tuple[int, str] | None],
    floors: RoundFloors,
) -> list[Component]:
    """What is patched away: the round before, in an earlier layer."""
    own = sites[memory.name]
    if own is None:
        return []
    if memory.round == 1:
        location = str(memory.location)
        found = reader.first_site(location, floors.decodable)
        if found is None or not found[1].endswith("resid_post") or found[0] >= own[0]:
            return []
        return [Component("ffn", found[0])]
    earlier = [sites[m.name] for m in nested if m.round == (memory.round or 0) - 1]
    layers = {site[0] for site in earlier if site is not None and site[0] < own[0]}
    return [p for p in components(reader.model) if p.kind == "head" and p.layer in layers]


def readout_roles(
    reader: Reader, answers: Mapping[str, Sequence[str]], *, floors: RoundFloors | None = None
) -> list[Found]:
    """Which FFN computes which answer.

    Args:
        reader: A model on rows with these latents.
        answers: Latent → the latents it is computed from.
        floors: The least that counts.
    """
    floors = floors or RoundFloors()
    return [f for name, of in answers.items() for f in _readout(reader, name, of, floors)]


def _readout(
    reader: Reader, answer: str, arguments: Sequence[str], floors: RoundFloors
) -> Iterator[Found]:
    site = reader.first_site(answer, floors.decodable)
    if site is None or not site[1].endswith("resid_post"):
        return
    layer, post = site
    mid = f"blocks.{layer}.hook_resid_mid"
    after, before = reader.present(post, answer, floors.decodable), reader.read(mid, answer).score
    gain = Test("of it gained here", after.score - before, floors.gain)
    if gain.score < gain.floor:
        return
    there = decode_nonlinearly(reader.features(reader.held(mid)), reader.truth(answer))
    p = decodability_null(there.predicted, reader.truth(answer), seed=reader.seed).p
    could = Test("a nonlinear probe reads it before with r²", there.score, floors.decodable, p)
    part = [Component("ffn", layer)]
    kept = [reader.lost(post, name, part, -1.0).score for name in arguments]
    cause = [
        reader.lost(post, answer, part, floors.drop),
        Test("r² of its arguments that stays", 1 - max(kept, default=0.0), 1 - floors.kept),
        reader.changed(part, floors.change),
    ]
    yield Found("ffn", layer, "readout", cause[0].score, [after, gain, could], cause, target=answer)
