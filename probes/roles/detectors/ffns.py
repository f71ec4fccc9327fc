"""Detect FFNs that compute answers, fetch memories out of a mixture, or make something more exact.

    z          an answer of the task, a line of its program, or the content of a memory
    r², R²     how well a linear probe reads z from the stream before the FFN, and from that after
    gain       (R² − r²) / (1 − r²), the share of what was missing that is gained

    readout    z is an answer or a line of the program, and the FFN is the first after which a probe
               reads it; what the task makes it from is there before, at least in part (r² ≥ .05)
    gating     z is a memory that a probe does not read before the FFN, while it reads there what
               stands at each place that the memory may be at: the FFN lets one of them through
    unmixing   z is a memory that a probe does not read before the FFN, nor all of those contents,
               but a part of it and of another lag's content (r² ≥ .05 each)
    sharpening z is read before the FFN (r² ≥ .9)

    behaviour  R² ≥ .9 and gain ≥ .5. R², or the share of what the FFN writes that z explains, is
               beyond that of fresh FFNs in its place. Of a readout that share is at least .05, and
               may instead be beyond that of FFNs of fresh models
    cause      without the FFN half of the gain is lost, what z is made from is still read if it was
               before, and the output changes. Of sharpening: half of the FFN's effect on the output
               is left when what it writes is replaced by what z says of it

A random FFN also makes functions of its input linear. Fresh FFNs read the same stream and write as
much (:mod:`probes.roles.fresh_ffns`): what is read as well behind them is not this FFN's doing.

On few corners or templates an answer is often linear in its arguments, so that a probe reads it
before any FFN. Then it is read as the output reads it, from the stream through the final norm and
the unembedding. Of locations, which the output does not read, nothing is said in that case.

An FFN sees the stream in front of it and nothing else. What can be read after it is therefore
determined by that stream, whether or not a probe finds it there. That a memory can be read after an
FFN does not say that a later layer reads it. Of two answers that nearly coincide both are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from interp.hooks.site import Site
from interp.interventions.components import Component, components, read_by_ffn
from interp.tasks.base import Memory
from probes.roles.activity import explained_variance
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.examined import Examined
from probes.roles.fresh_ffns import beyond_fresh, has_own_ffns, not_asked
from probes.roles.reader import Reader, lagged_contents, share_gained

_ROLES = ("readout", "gating", "unmixing", "sharpening")
_ITSELF = 0.5
"""The r² from which on a content goes along with a memory."""


def ffn_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test what every FFN computes, fetches or makes more exact."""
    reader = of.reader
    if reader is None:
        return
    parts = [part for part in components(reader.model) if part.kind == "ffn"]
    if not (has_own_ffns(reader.model) and all(map(reader.is_run_apart, parts))):
        words = "the model does not name its FFNs, or they cannot be run apart from their layers"
        yield from (Lacking(role, words) for role in _ROLES)
        return
    lines = [one.name for one in of.sought if one.name in reader.batch.latents]
    answers = {name: () for name in lines if reader.latents[name].ndim == 2} | {**of.answers}
    readouts = [one for name, made_of in answers.items() for one in _readout(reader, name, made_of)]
    yield from readouts
    computed = {(one.layer, one.target) for one in readouts}
    names = dict.fromkeys([*answers, *(memory.name for memory in of.memories)])
    for part in parts:
        for memory in of.memories:
            yield from _gained_memory(reader, part, memory)
        for name in names:
            if (part.layer, name) not in computed:
                yield from _sharpening(reader, part, name)


def _first_post(reader: Reader, answer: str) -> tuple[int, bool] | None:
    """The layer after whose FFN an answer first is decodable, by a probe, or, where a probe reads
    it before any FFN could have written it, by the output's own reading (True)."""
    site = reader.first_site(answer)
    if site is None or site[1].endswith("resid_post"):
        return None if site is None else (site[0], False)
    site = reader.first_site(answer, lens=True)
    return (site[0], True) if site is not None and site[1].endswith("resid_post") else None


def _readout(reader: Reader, answer: str, arguments: Sequence[str]) -> Iterator[Found]:
    found = _first_post(reader, answer)
    if found is None:
        return
    layer, lens = found
    gain = _Gain(reader, Component("ffn", layer), answer, lens=lens)
    if not gain.enough:
        return
    hook = Site(layer, "mlp_out").name
    share = float(explained_variance(*reader.probe_samples(hook, answer)))
    written = Test("share of what the FFN writes that it explains", share, reader.floors.written)

    def in_fresh_models() -> float:
        return reader.evidence.fresh.odds(
            hook, lambda value: explained_variance(*reader.of_first_rows(value, answer))
        ).p

    there, kept = gain.argument_tests(arguments) if arguments else ([], [])
    yield gain.finding("readout", [written, *there], kept, also=in_fresh_models)


def _gained_memory(reader: Reader, part: Component, memory: Memory) -> Iterator[Found]:
    """A memory that is not decodable before an FFN and is after it."""
    gain = _Gain(reader, part, memory.name)
    if gain.before >= reader.floors.decodable or not gain.enough:
        return
    places = [*lagged_contents(reader.batch, [memory])]
    there = min((reader.read(gain.mid, name).score for name in places), default=0.0)
    if len(places) > 1 and there >= reader.floors.decodable:
        name = "least r² before of what stands where it may be"
        tests = [Test(name, there, reader.floors.decodable)]
        yield gain.finding("gating", tests, gain.argument_tests(places)[1])
        return
    least = min(gain.before, _best_other(reader, gain.mid, memory.name))
    words = "least r² before of it and of another content that it is mixed with"
    tests = [Test(words, least, reader.floors.mixture)]
    if holds(tests):
        yield gain.finding("unmixing", tests, [])


def _best_other(reader: Reader, hook: str, memory: str) -> float:
    """How well a probe reads what stood at some other lag: the best r², leaving out the memory
    itself and what goes along with it."""
    truth = torch.from_numpy(reader.truth(memory))
    others = [
        name
        for name in reader.lags
        if float(explained_variance(torch.from_numpy(reader.truth(name))[..., None], truth))
        < _ITSELF
    ]
    return max((reader.read(hook, name).score for name in others), default=0.0)


def _sharpening(reader: Reader, part: Component, latent: str) -> Iterator[Found]:
    """Something that is decodable before an FFN, and more exactly after it."""
    gain = _Gain(reader, part, latent)
    if gain.before >= reader.floors.decodable and gain.enough:
        yield gain.finding("sharpening", [], [reader.effect_through_latent([part], latent)])


class _Gain:
    """How much better a latent is read after an FFN than before it.

    Attributes:
        mid: The hook of the stream that the FFN reads.
        before: r² there.
        enough: Whether it is decodable after the FFN, and enough of what was missing is gained.
    """

    def __init__(self, reader: Reader, part: Component, latent: str, *, lens: bool = False) -> None:
        self._reader, self._part, self._latent, self._lens = reader, part, latent, lens
        self._post = Site(part.layer, "resid_post").name
        self.mid = read_by_ffn(reader.model, part.layer).name
        self.before = reader.read(self.mid, latent, lens=lens).score
        after, floors = reader.read(self._post, latent, lens=lens).score, reader.floors
        self._rise, self._share = after - self.before, share_gained(self.before, after)
        self.enough = after >= floors.decodable and self._share >= floors.readout_gain

    def finding(
        self,
        role: str,
        behaviour: Sequence[Test],
        cause: Sequence[Test],
        *,
        also: Callable[[], float] | None = None,
    ) -> Found:
        """The role with its tests; ``also``: the p of another null of chance. Fresh FFNs are asked
        last, and not where nothing would be lost without the FFN."""
        reader, floors, latent, lens = self._reader, self._reader.floors, self._latent, self._lens
        as_read = ", as the output reads it," if lens else ""
        drop = floors.readout_drop * self._rise
        lost = reader.drop_without(self._post, latent, [self._part], drop, lens=lens)
        causes = [lost, *cause, *reader.necessity_tests([self._part])]
        tests = [
            reader.present(self._post, latent, lens=lens),
            Test(f"of what was missing gained here{as_read}", self._share, floors.readout_gain),
            *behaviour,
            self._beyond(also) if role == "readout" or holds(causes) else not_asked(),
        ]
        return Found("ffn", self._part.layer, role, lost.score, tests, causes, target=latent)

    def argument_tests(self, arguments: Sequence[str]) -> tuple[list[Test], list[Test]]:
        """Test that what it is made from is there without the FFN.

        Arguments may be mixed with others before the FFN, as heads write several at once, so that a
        probe reads a part of them there; those that it reads whole must stay without the FFN.

        Returns:
            The test of behaviour, and the test of cause, if any argument is read whole.
        """
        floors, before = self._reader.floors, {}
        for name in arguments:
            before[name] = self._reader.read(self.mid, name).score
        words = "least r² before of what it is made from"
        there = [Test(words, min(before.values()), floors.mixture)]
        whole = [name for name, score in before.items() if score >= floors.decodable]
        if not whole:
            return there, []
        lost = [
            self._reader.drop_without(self._post, name, [self._part], -1.0).score for name in whole
        ]
        return there, [Test("r² of its arguments that stays", 1 - max(lost), 1 - floors.kept)]

    def _beyond(self, also: Callable[[], float] | None) -> Test:
        """That fresh FFNs in its place do not say as much of it. Where there is another null, p
        pays for two, and the other is asked where fresh FFNs leave it open."""
        p = self._reader.beyond_fresh_ffns(self._part.layer, self._latent).p
        if also is None:
            return beyond_fresh(p)
        level = self._reader.evidence.profile.level
        return beyond_fresh(min(1.0, 2 * (p if 4 * p < level else min(p, also()))))
