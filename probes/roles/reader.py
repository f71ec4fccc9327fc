"""Read latents from a model's activations on a task's rows, with and without components.

Activations are those of the evidence's clean pass, at the sampled positions
(:mod:`probes.activations`). When components are ablated, the model is run once from the first of
their layers on, and all activations under this ablation are taken from that run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.interventions.components import Component, read_by_ffn, stream_after
from interp.run import Add, Array, Mean, Site, output_site
from interp.run.edits import Edits
from interp.stats.nulls import (
    correlation_interval,
    correlation_squared,
    decodability_null,
    swaps_null,
)
from interp.tasks.base import Batch, Memory
from probes.linear import Decoding, decode, direction, folds_of
from probes.roles.activity import readable
from probes.roles.decision import Test
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence
from probes.roles.fresh_ffns import FreshFFNs
from probes.roles.reinit_null import Beyond

FOLDS = 8
"""Number of folds of rows in cross-validation, and therefore the least number of rows."""

Features = NDArray[np.float64]

_MOST_LAGS = 12
_NOW = "x[t]"
_LAG = re.compile(r"x\[t-\d+\]")


@dataclass(frozen=True)
class _Without:
    """The results of a run in which some components are mean-ablated.

    Attributes:
        features: Hook → the activation at the sampled positions.
        changed: The test that the output changes.
        worse: The test that the loss rises; None where targets are not known.
    """

    features: Mapping[str, Features]
    changed: Test
    worse: Test | None


class Reader:
    """Linear probes on a model's activations, for rows with latents.

    Args:
        evidence: The evidence, with the activations of its clean pass (``sites``).
        effects: The effects of edits on the same model.
        memories: The task's memories, which determine ``contents``.

    Attributes:
        contents: Name → ``[row, pos]``: for each lag that a memory may have, the content at this
            lag, which the rows' own latents need not include.
        latents: Name → ``[row, pos]``: the rows' latents, ``contents``, and the contents of
            ``lags``.
        lags: The names of the contents of lags: those of memories, and, where the rows have the
            latent ``x[t]``, the first twelve.
    """

    def __init__(
        self, evidence: Evidence, effects: Effects, memories: Sequence[Memory] = ()
    ) -> None:
        self.evidence, self.effects = evidence, effects
        self.model, self.batch = evidence.model, evidence.views["given"].batch
        self.contents = lagged_contents(self.batch, memories)
        told = {**self.batch.latents, **self.contents}
        self.latents = {**_first_lags(self.batch), **told}
        self.lags = tuple(name for name in self.latents if _LAG.fullmatch(name))
        self.floors, self.seed, self.places = evidence.floors, evidence.seed, evidence.places
        self._read: dict[tuple[str, str, bool], Decoding] = {}
        self._without: dict[tuple[Component, ...], _Without] = {}
        self._inside: dict[tuple[int, tuple[str, ...]], Mapping[str, Tensor]] = {}

    def features(self, hook: str) -> Features:
        """Return the clean activation of a hook at the sampled positions, ``[row, sample,
        feature]``."""
        return self.evidence.sampled_activation(hook)

    def truth(self, latent: str) -> Features:
        """Return the values of a latent at the sampled positions, ``[row, sample]``."""
        found: Features = self.places.of(self.latents[latent]).double().numpy()
        return found

    @cached_property
    def _folds(self) -> Tensor:
        return torch.from_numpy(folds_of(self.places.groups))

    def of_first_rows(self, value: Tensor, latent: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is needed to probe a latent on the first rows alone.

        Args:
            value: The activation on the first rows, ``[row, pos, feature]``.
            latent: The name of the latent.

        Returns:
            The activation ``[row, sample, feature]`` and the latent ``[row, sample]`` at the
            sampled positions, and the number of each row's cross-validation fold.
        """
        kept = self.places.rows < len(value)
        rows = torch.from_numpy(self.places.rows[kept])[:, None]
        at = torch.from_numpy(self.places.positions[kept])
        folds = torch.from_numpy(folds_of(self.places.groups[kept]))
        return value[rows, at], self.latents[latent][rows, at].double(), folds

    def probe_samples(self, hook: str, latent: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is needed to probe a latent on all rows.

        Args:
            hook: The hook whose clean activation is probed.
            latent: The name of the latent.

        Returns:
            The activation ``[row, sample, feature]`` and the latent ``[row, sample]`` at the
            sampled positions, and the number of each row's cross-validation fold.
        """
        value, truth = self.features(hook), self.truth(latent)
        return torch.from_numpy(value), torch.from_numpy(truth), self._folds

    def read(self, hook: str, latent: str, *, lens: bool = False) -> Decoding:
        """Fit a linear probe for a latent on a hook's clean activation, and score it on held-out
        rows.

        Results are remembered, so that each probe is fitted only once.

        Args:
            hook: The hook whose activation is probed.
            latent: The latent that the probe predicts.
            lens: Probe the logits that final norm and unembedding make of the activation (logit
                lens), instead of the activation itself.
        """
        if (hook, latent, lens) not in self._read:
            found = self._decode(self._features(self.features(hook), lens), self.truth(latent))
            self._read[hook, latent, lens] = found
        return self._read[hook, latent, lens]

    def _decode(self, features: Features, truth: Features) -> Decoding:
        return decode(features, truth, groups=self.places.groups)

    def _features(self, value: Features, lens: bool) -> Features:
        if not lens:
            return value
        weight = next(iter(self.model.parameters()))
        with torch.no_grad():
            read = self.model.unembed(self.model.ln_final(torch.from_numpy(value).to(weight)))
        found: Features = read.double().cpu().numpy()
        return found

    def present(self, hook: str, latent: str, *, lens: bool = False) -> Test:
        """Test whether a latent is linearly decodable at a hook; the score is the probe's held-out
        r².

        Args:
            hook: The hook whose clean activation is probed.
            latent: The latent that the probe predicts.
            lens: Whether to probe the logits that final norm and unembedding make of the
                activation, instead of the activation itself.
        """
        found = self.read(hook, latent, lens=lens)
        truth = self.truth(latent)
        p = decodability_null(found.predicted, truth).p
        low, high = correlation_interval(found.predicted, truth, seed=self.seed)
        name = f"r² of {latent} after the sublayer"
        return Test(name, found.score, self.floors.decodable, p, low, high, "present")

    def drop_without(
        self,
        hook: str,
        latent: str,
        without: Sequence[Component],
        floor: float,
        *,
        lens: bool = False,
        same: bool = False,
    ) -> Test:
        """Test whether a latent is less decodable at a hook when some components are mean-ablated.

        The score is the fall of r², before minus after; p is that of
        :func:`interp.stats.nulls.swaps_null`.

        Args:
            hook: The hook whose activation is probed.
            latent: The latent that the probe predicts.
            without: The components whose outputs are replaced by their means over rows.
            floor: The least score that passes.
            lens: Whether to probe the logits that the unembedding makes of the activation, instead
                of the activation itself.
            same: Whether to keep the direction that was fitted on the clean activations, as later
                layers keep theirs, instead of fitting a new probe.
        """
        truth, before = self.truth(latent), self.read(hook, latent, lens=lens)
        there = self._features(self._run(without).features[hook], lens)
        if same:
            w = direction(self._features(self.features(hook), lens), truth)
            after = Decoding(correlation_squared(there @ w, truth), there @ w)
        else:
            after = self._decode(there, truth)
        drop = before.score - after.score
        p = swaps_null(before.predicted, after.predicted, truth, seed=self.seed).p
        name = f"r² of {latent} lost without {_names_of(without)}"
        low, high = correlation_interval(
            before.predicted, truth, than=after.predicted, seed=self.seed
        )
        return Test(name, drop, floor, p, low, high, f"lost without {min(len(without), 2)}")

    def drop_without_location(self, layer: int, hook: str, latent: str, location: str) -> Test:
        """Test whether a latent is less decodable at a hook when a layer's input has the location
        of another row.

        A linear fit predicts the residual stream that enters the layer from the classes of the
        location. The part of the stream that it predicts is replaced by what it predicts on another
        row. The score is the fall of r², before minus after, with a new probe.

        Args:
            layer: The layer whose input is changed.
            hook: The hook whose activation is probed.
            latent: The latent that the probe predicts.
            location: The name of the latent that says where the content lies.
        """
        truth, before = self.truth(latent), self.read(hook, latent)
        entering = Site(layer, "resid_pre").name
        stream = self.inside(layer, (entering,))[entering]
        classes, which = self.latents[location].unique(return_inverse=True)
        shown = torch.nn.functional.one_hot(which, len(classes)).to(stream)
        means = torch.linalg.lstsq(shown.flatten(0, 1), stream.flatten(0, 1)).solution
        order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(self.seed))
        moved = (shown[order.roll(1)[order.argsort()]] - shown) @ means
        edit = Add(Site.of(entering), Array(moved, f"{location} of another row"))
        after = self._decode(self._features_with((edit,), [hook])[hook], truth)
        p = swaps_null(before.predicted, after.predicted, truth, seed=self.seed).p
        low, high = correlation_interval(
            before.predicted, truth, than=after.predicted, seed=self.seed
        )
        name = f"r² of {latent} lost with {location} of another row"
        return Test(name, before.score - after.score, self.floors.stops, p, low, high, "located")

    def effect_through_latent(self, group: Sequence[Component], latent: str) -> Test:
        """Test whether heads of a layer, or an FFN, affect the output through one latent alone.

        What they write, minus its mean over rows, is replaced by its least-squares fit as a linear
        function of the latent. The score is 1 − (change of the output by this) / (change of the
        output when they are ablated): 1 if their whole effect is kept.

        Args:
            group: Heads of one layer, which are taken together, or one FFN.
            latent: The latent's name.
        """
        layer, ffn = group[0].layer, group[0].kind == "ffn"
        site = Site(layer, "mlp_out" if ffn else "attn_out")
        written = self.effects.writes.of_part(group[0]) if ffn else self._together(group)
        value, scored = self.latents[latent].double(), self.batch.mask
        moved = value - value.mean(0)
        line = (written[scored] * moved[scored][:, None]).sum(0) / moved[scored].square().sum()
        lost = Array(moved[..., None] * line - written, f"less all but {latent}")
        edits = (Add(site, lost),)
        who = "it does" if ffn else "they do"
        name = f"of what {who} to the output, kept with {latent} alone of what "
        name += "it writes" if ffn else "they write"
        floor = self.floors.alone if ffn else self.floors.carried
        return self.effects.kept_output(self.ablation(group), edits, name, floor)

    def _together(self, group: Sequence[Component]) -> Tensor:
        return self.effects.writes.together([(part.layer, part.head) for part in group])

    def effect_through_keys(self, part: Component, keys: Tensor) -> Test:
        """Test whether a head affects the output through its attention to some keys alone.

        All its attention is moved to these keys. The score is 1 − (change of the output by this) /
        (change of the output when the head is ablated): 1 if its whole effect is kept.

        Args:
            part: The head.
            keys: True for the keys, ``[row, query, key]``; queries without keys keep their
                attention.
        """
        name = "of what it does to the output, kept with its attention at the location alone"
        edits = self.effects.rises.only_keys((part.layer, part.head), keys)
        return self.effects.kept_output(self.ablation([part]), edits, name, self.floors.carried)

    def necessity_tests(self, without: Sequence[Component]) -> list[Test]:
        """Test whether the output changes when components are mean-ablated.

        Args:
            without: The components, ablated together.

        Returns:
            The test that the loss rises, if targets are known, then the test that the output
            changes.
        """
        found = self._run(without)
        return [*([found.worse] if found.worse is not None else []), found.changed]

    def first_site(
        self, latent: str, *, lens: bool = False, level: float = 1.0
    ) -> tuple[int, str] | None:
        """Find the first residual-stream site, in order of the layers, at which a latent is
        decodable.

        Args:
            latent: The latent that the probe predicts.
            lens: Whether to probe the logits made of the stream, instead of the stream itself.
            level: The largest p-value at which the latent counts as decodable.

        Returns:
            (layer, hook); None if there is no such site.
        """
        for layer, hook in self.sites():
            if self.read(hook, latent, lens=lens).score < self.floors.decodable:
                continue
            if level >= 1 or self.present(hook, latent, lens=lens).p <= level:
                return layer, hook
        return None

    def beyond_fresh(self, hook: str, latent: str) -> Beyond:
        """Compare how well a latent can be decoded with freshly initialised models.

        The score is the odds r² / (1 − r²) of a linear probe's held-out squared correlation with
        the latent. The first of the given rows are used.

        Args:
            hook: The hook whose activation is decoded.
            latent: The name of the latent.

        Returns:
            The odds in this model, their p-value against fresh models, and the number of draws.
        """
        return self.evidence.fresh.odds(
            hook, lambda value: readable(*self.of_first_rows(value, latent))
        )

    def beyond_fresh_ffns(self, layer: int, latent: str) -> Beyond:
        """Compare how well a layer's FFN encodes a latent with freshly initialised FFNs in its
        place.

        The fresh FFNs read the same residual stream
        (:meth:`probes.roles.fresh_ffns.FreshFFNs.compare_latent`).

        Args:
            layer: The layer.
            latent: The name of the latent.
        """
        stream = torch.from_numpy(self.features(read_by_ffn(self.model, layer).name))
        truth = torch.from_numpy(self.truth(latent))
        return FreshFFNs(self.model, seed=self.seed).compare_latent(
            layer, stream, truth, self._folds
        )

    def is_run_apart(self, part: Component) -> bool:
        """Return whether an FFN can be run by itself.

        It can if its norm and its network, applied to the residual stream that it reads, reproduce
        what it writes in the model.
        """
        hooks = read_by_ffn(self.model, part.layer).name, Site(part.layer, "mlp_out").name
        stream, written = (torch.from_numpy(self.features(hook)) for hook in hooks)
        return FreshFFNs(self.model).writes(part.layer, stream, written)

    def before(self, layer: int) -> str:
        """Return the hook of the residual stream that enters a layer."""
        return [hook for at, hook in self.sites() if at < layer][-1]

    def inside(self, layer: int, hooks: tuple[str, ...]) -> Mapping[str, Tensor]:
        """Return the clean activations of some hooks of one layer on all rows, on the CPU."""
        if (layer, hooks) not in self._inside:
            found = self.evidence.run("given").at(hooks)
            held = {site.name: value.cpu() for site, value in found.items()}
            self._inside = {(layer, hooks): held}
        return self._inside[layer, hooks]

    def sites(self) -> Iterator[tuple[int, str]]:
        """Yield the (layer, hook) of each site of the residual stream: before layer 0, as layer −1,
        and after each sublayer."""
        yield -1, Site(0, "resid_pre").name
        yield from stream_after(self.model)

    def ablation(self, without: Sequence[Component]) -> Edits:
        """Return the edits that mean-ablate components."""
        return tuple(Mean(output_site(self.model, part.layer, part.head)) for part in without)

    def _run(self, without: Sequence[Component]) -> _Without:
        """Run the model with some components mean-ablated; each set of components is run once."""
        key = tuple(without)
        if key not in self._without:
            edits = self.ablation(without)
            layer = min(part.layer for part in without)
            keep = [hook for at, hook in self.sites() if at >= layer]
            if without[0].kind == "ffn":
                keep = [hook for hook in keep if hook != Site(layer, "resid_mid").name]
            words = f"without {_names_of(without)}"
            name = f"{words} the output changes by a share of its variance of"
            changed = self.effects.change_test(edits, self.floors.memory_change, name)
            worse = self.effects.worse(edits, words) if self.evidence.targets else None
            features = self._features_with(edits, keep)
            self._without[key] = _Without(features, changed, worse)
        return self._without[key]

    def _features_with(self, edits: Edits, hooks: Sequence[str]) -> dict[str, Features]:
        """Return the activations of hooks at the sampled positions under some edits."""
        found = self.evidence.run("given").with_(*edits).at(hooks)
        at_places, every = self.evidence.at_places, slice(0, len(self.batch))
        return {site.name: at_places(every, value.cpu()) for site, value in found.items()}


def _names_of(parts: Sequence[Component]) -> str:
    return parts[0].name if len(parts) == 1 else f"its group of {len(parts)}"


def _first_lags(batch: Batch) -> dict[str, Tensor]:
    """Return the contents of the first twelve lags, by name, if the rows have the latent
    ``x[t]``."""
    now = batch.latents.get(_NOW)
    if now is None or now.ndim != 2:
        return {}
    return {f"x[t-{lag}]": _delay(now, lag) for lag in range(1, min(_MOST_LAGS + 1, now.shape[1]))}


def _delay(now: Tensor, lag: int) -> Tensor:
    return torch.nn.functional.pad(now, (lag, 0))[:, : now.shape[1]]


def check_named_latents(
    batch: Batch, memories: Sequence[Memory], answers: Mapping[str, Sequence[str]]
) -> None:
    """Check that memories and answers name latents of the rows.

    The contents of lags may be named too where they follow from the latents, such as ``x[t-3]``
    from ``x[t]``.

    Args:
        batch: The rows, with their latents.
        memories: The memories.
        answers: Latent → the latents that it is computed from.

    Raises:
        ArgumentError: if one of them names no latent of the rows.
    """
    problems = Problems("roles")
    rule = f"must name latents of the rows ({', '.join(batch.latents) or 'they have none'})"
    advice = "name one of these, or let sample() of the task give it in the rows' latents"
    made = _first_lags(batch).keys()
    lacking = [
        one.name
        for one in memories
        if one.name not in batch.latents and (isinstance(one.location, int) or one.name not in made)
    ]
    problems.need(not lacking, "memories", rule, lacking, advice)
    places = dict.fromkeys(one.location for one in memories if isinstance(one.location, str))
    unplaced = [place for place in places if place not in batch.latents]
    problems.need(not unplaced, "location of memories", rule, unplaced, advice)
    if not problems.found:
        known = {*batch.latents, *made, *lagged_contents(batch, memories)}
        told = dict.fromkeys(name for answer in answers.items() for name in (answer[0], *answer[1]))
        lacking = [name for name in told if name not in known]
        problems.need(not lacking, "answers", rule, lacking, advice)
    problems.raise_if_any()


def share_gained(before: float, after: float) -> float:
    """Return the share of the variance that a probe misses before a sublayer which it explains
    after it, from the r² before and after."""
    return (after - before) / max(1 - before, 1e-9)


def lagged_contents(batch: Batch, memories: Sequence[Memory]) -> dict[str, Tensor]:
    """Return the contents of each lag at which a memory may lie.

    For a memory at a fixed lag, this is the memory itself. For a memory whose lag is a latent, it
    is the content of each of the first twelve lags that occur, if the rows have the latent
    ``x[t]``. Of nested memories only those of the first round are used, because the lags of later
    rounds are counted from another position.

    Args:
        batch: The rows, with their latents.
        memories: The memories.

    Returns:
        Name, such as ``x[t-3]`` → the content, ``[row, pos]``.
    """
    found: dict[str, Tensor] = {}
    for memory in memories:
        if isinstance(memory.location, int):
            found[f"x[t-{memory.location}]"] = batch.latents[memory.name]
        elif (
            isinstance(memory.location, str) and (memory.round or 1) == 1 and _NOW in batch.latents
        ):
            lags = batch.latents[memory.location][batch.mask].unique().long().tolist()
            now = batch.latents[_NOW]
            for lag in (lag for lag in lags[:_MOST_LAGS] if 0 < lag < now.shape[1]):
                found[f"x[t-{lag}]"] = _delay(now, lag)
    return found
