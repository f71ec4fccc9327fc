"""Detect nested rounds, layer by layer, and the FFNs that compute answers.

    nested-round r   behaviour  the layer is the first after whose attention x_{t−t_r} is decodable
                     cause      it no longer is when round r − 1 is patched away: the heads of the
                                layer where that round's content appeared give their mean over
                                rows. Round 1 has its location for a round before: the FFN that
                                computes it is patched away or, where none does, what the location
                                predicts of the stream that enters the layer comes from another row
    readout of f     behaviour  f is linearly decodable after the FFN and less so before, while a
                                nonlinear probe reads it before: the arguments are there
                     cause      without the FFN f is less decodable, its arguments are kept, and
                                the output changes

A random FFN also makes functions of its input linearly decodable. Of models that can be drawn again
the share of what the FFN writes that f explains (linearly, all directions together) must exceed
that of a thousand FFNs with fresh weights.

Where f is linear in its arguments (on few corners or templates it often is), any probe reads it
before the FFN, and only its place is new: then f is read as the output reads it, from the stream
through the final norm and the unembedding. Of locations, which the output does not read, nothing is
said in that case.

A memory in which no round follows another (a single one, or two at once) is not nested: where the
embedding supplies its location it stays a candidate. The nonlinear control says that the FFN's
input determines f, not that the FFN alone could compute it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from interp.hooks.site import Site
from interp.interventions.components import Component, components
from interp.stats.nulls import correlation_interval, decodability_null
from interp.tasks.base import Memory
from probes.controls import decode_nonlinearly
from probes.roles.activity import explained
from probes.roles.decision import Found, Test, holds
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


def readout_roles(of: Examined) -> list[Found]:
    """Test which FFN computes which answer."""
    if of.reader is None:
        return []
    return [f for name, parts in of.answers.items() for f in _readout(of.reader, name, parts)]


def _first_post(reader: Reader, answer: str) -> tuple[int, bool] | None:
    """The layer after whose FFN an answer first is decodable, by a probe, or, where a probe reads
    it before any FFN could have written it, by the output's own reading (True)."""
    site = reader.first_site(answer)
    if site is None or site[1].endswith("resid_post"):
        return None if site is None else (site[0], False)
    site = reader.first_site(answer, lens=True)
    return (site[0], True) if site is not None and site[1].endswith("resid_post") else None


def _readout(reader: Reader, answer: str, arguments: Sequence[str]) -> Iterator[Found]:
    floors, found = reader.floors, _first_post(reader, answer)
    if found is None:
        return
    layer, lens = found
    post = Site(layer, "resid_post").name
    sites = [hook for _, hook in reader.sites()]
    mid = sites[sites.index(post) - 1]  # what the FFN reads, of a layer without heads its input
    after = reader.present(post, answer, lens=lens)
    before = reader.read(mid, answer, lens=lens).score
    rise = after.score - before
    words = "of what was missing gained here" + (", as the output reads it," if lens else "")
    gain = Test(words, rise / max(1 - before, 1e-9), floors.readout_gain)
    if gain.score < gain.floor:
        return
    there = decode_nonlinearly(
        reader.features(mid), reader.truth(answer), groups=reader.places.groups
    )
    truth = reader.truth(answer)
    p = decodability_null(there.predicted, truth).p
    low, high = correlation_interval(there.predicted, truth, seed=reader.seed)
    name = "a nonlinear probe reads it before with r²"
    could = Test(name, there.score, floors.decodable, p, low, high)
    part = [Component("ffn", layer)]
    written = _write_test(reader, layer, answer)
    kept = [reader.lost(post, name, part, -1.0).score for name in arguments]
    cause = [
        reader.lost(post, answer, part, floors.readout_drop * rise, lens=lens),
        Test("r² of its arguments that stays", 1 - max(kept, default=0.0), 1 - floors.kept),
        *reader.needed(part),
    ]
    yield Found(
        "ffn",
        layer,
        "readout",
        cause[0].score,
        [after, gain, could, written],
        cause,
        target=answer,
    )


def _write_test(reader: Reader, layer: int, answer: str) -> Test:
    """The test that an FFN writes the answer, and more so than fresh ones."""
    hook = Site(layer, "mlp_out").name
    found = reader.evidence.fresh.odds(
        hook, lambda value: explained(*reader.of_first_rows(value, answer))
    )
    share = float(explained(*reader.sampled(hook, answer)))
    name = f"share of what the FFN writes that it explains (against {found.draws} fresh ones)"
    return Test(name, share, reader.floors.written, found.p)
