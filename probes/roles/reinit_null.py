"""The null distribution of heads' scores in untrained models, for roles that untrained heads have
too.

Untrained attention is nearly even, and in narrow networks much depends on it. Two scores of a head
are therefore compared with those of the same layer's heads in freshly initialised models:

    gain        max over steps s of  Σ |out_s − out|² / Σ |s·(mean − written)|²   the steepest
                change of the output relative to the size of the edit, when the head's output is
                moved a share s of the way to its mean over rows
    unevenness  total variation distance of its attention from even attention, over the later
                half of the positions

Several steps are tried because a model that compares a count with a threshold changes steeply at
the step that crosses it, whether its margin is wide or narrow; a fresh network responds to every
step alike. For fresh models the null is exact, whatever the score.

Fresh weights are those of :mod:`probes.fresh_models`; where the spec draws them, many models run in
one pass. After the edit the model is run on from the head's layer; foreign models too, if they can
be run from the middle (:mod:`interp.interventions.prefix_reuse`). A thousand fresh heads are pooled
over the layer's heads and over models, fewer for very wide models (a hundred at ten million
weights). A quarter of them is enough where it settles the result: where p is large, or so small
that it passes Benjamini and Hochberg's rule given only the heads asked before (further heads can
only make it pass more easily). p is computed on logarithms of the scores
(:mod:`interp.stats.p_values`).

If fresh heads are not even, as with the large weights of compiled programs, evenness itself is
compared instead of the gain. Which of the two is compared is decided by the fresh heads alone.

A dense head is judged by both scores together: by the product of the shares of fresh heads that
reach its gain and its unevenness, compared with this product for each fresh head.

Scores in [0, 1] of other activations (:meth:`ReinitNull.odds`) are compared with the same null.

A small p says that a head is not as it was initialised. It says nothing about what the head does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from interp.hooks.capture import model_device
from interp.hooks.site import Site
from interp.interventions.components import Component, components, hook_of
from interp.models.transformer import SequenceTransformer
from interp.run.layers import HookedLayers
from interp.run.plain import runners_of
from interp.stats.p_values import from_draws
from probes.fresh_models import draws_of, fresh_models, stacked_models

_STEPS = (1.0, 0.5, 0.2)
_SCORED, _FEWEST_ROWS, _MOST_ROWS = 400, 16, 48
_ROWS_SHUFFLED = 8
_AT_ONCE = 2**23
"""Largest number of values (weights and activations) in memory for the fresh models that run in one
pass."""
_FEW_DRAWS, _CHANCE = 100, 0.2
"""A quarter of the draws is made first, if that is at least ``_FEW_DRAWS``. If p is then
``_CHANCE`` or more, or small enough for all heads that are asked, the rest is not drawn."""
_FIRST, _HOPELESS = 50, 0.1
"""How many draws :func:`beyond_draws` makes first; if p is then at least the second, the others are
not made: they would hardly bring it below the level."""
_TINY = 1e-30
_GAIN, _UNEVENNESS, _BOTH = "gain", "unevenness", "both"

Hooks = list[tuple[str, Callable[..., Any]]]
Run = Callable[..., Tensor]
"""A function from inputs and hook names to the output and the hooks' activations; with a layer
given, it starts from the residual stream after that layer's attention."""


@dataclass(frozen=True)
class _Seen:
    """The activations of one pass of a model.

    Attributes:
        output: The output.
        kept: The heads' outputs (``written``), the stream after attention (``stream``) and the
            attention pattern (``pattern``), as far as they were requested.
        entering: The layers of a foreign model and the stream that enters the head's layer; None
            where the model cannot be run on from there.
    """

    output: Tensor
    kept: Mapping[str, Tensor]
    entering: tuple[HookedLayers, Tensor] | None = None


class _Passes(nn.Module):
    """A SequenceTransformer that is run from its inputs, or from between a layer's attention and
    its FFN."""

    def __init__(self, model: SequenceTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor, layer: int | None = None) -> Tensor:
        if layer is None:
            return self.model(given)
        block, stream = self.model.blocks[layer], given
        if block.mlp is not None:
            written = block.mlp(block.ln2(stream))
            stream = stream + written if block.residual else written
        for later in self.model.blocks[layer + 1 :]:
            stream = later(stream)
        output: Tensor = self.model.unembed(self.model.ln_final(stream))
        return output


@dataclass(frozen=True)
class Beyond:
    """A score compared with random draws of it, such as those of freshly initialised models.

    Attributes:
        p: The p-value of the score.
        draws: The number of draws that it is compared with.
        score: The score.
    """

    p: float
    draws: int
    score: float


def beyond(score: float, draws: Float[np.ndarray, " draw"]) -> Beyond:
    """Compute the p-value of a positive score against draws of it, on logarithms."""
    logs = np.log(np.maximum(draws, _TINY))
    return Beyond(from_draws(float(np.log(max(score, _TINY))), logs).p, len(draws), score)


def beyond_draws(own: list[float], drawn: Iterator[list[float]]) -> Beyond:
    """Compute how far out a positive score is among random draws of it, by the first fifty, or by
    all where these leave it open. Of several scores the one that is furthest out counts, and its p
    is taken times their number.

    Args:
        own: The scores.
        drawn: The same scores of each draw.
    """
    some = list(islice(drawn, _FIRST))
    found = _furthest(own, some)
    return found if found.p >= _HOPELESS else _furthest(own, [*some, *drawn])


def _furthest(own: list[float], drawn: list[list[float]]) -> Beyond:
    columns = np.array(drawn).T
    found = [beyond(one, draws) for one, draws in zip(own, columns, strict=True)]
    best = min(found, key=lambda one: one.p)
    return replace(best, p=min(1.0, best.p * len(found)))


class ReinitNull:
    """Compares a model's heads with those of freshly initialised models, on the first rows of some
    inputs.

    Args:
        model: A SequenceTransformer, or any other hooked model.
        inputs: The inputs, ``[row, pos]`` tokens or ``[row, pos, channel]``.
        scored: True at the positions where the output counts.
        seed: Seed of the fresh weights.
        far: The false-discovery rate at which a p-value, together with those of the heads asked
            before, is small enough for a quarter of the draws to do. At 0 no p-value is.
    """

    def __init__(
        self,
        model: Any,
        inputs: Tensor,
        scored: Bool[Tensor, "row pos"],
        *,
        seed: int = 0,
        far: float = 0.0,
    ) -> None:
        self.model, self.seed, self._far = model, seed, far
        self._asked: dict[str, list[float]] = {_GAIN: [], _UNEVENNESS: [], _BOTH: []}
        self.spec: Any = getattr(model, "spec", None)
        a_row = float(scored.double().sum(1).mean())
        rows = min(max(int(_SCORED / max(a_row, 1.0)), _FEWEST_ROWS), _MOST_ROWS)
        rows = rows if self.spec is not None else _ROWS_SHUFFLED
        self._device = model_device(model)
        self.inputs = inputs[:rows].to(self._device)
        self.scored = scored[:rows].to(self._device)
        self._drawn: dict[tuple[str, int], np.ndarray] = {}
        self._clean: dict[int, _Seen] = {}
        ours = isinstance(model, SequenceTransformer)
        ways = [] if ours else runners_of(model, self.inputs)
        self._replayed = any(isinstance(way, HookedLayers) for way in ways)

    @torch.no_grad()
    def odds(self, hook: str, share: Callable[[Tensor], Tensor]) -> Beyond:
        """Compare a share s in [0, 1], computed from an activation, with the same in fresh models.

        The odds s / (1 − s) are compared, so that shares near 1 differ too.

        Args:
            hook: The hook of the activation.
            share: A function from the activation on :attr:`inputs`, on the CPU, to the share.

        Returns:
            The odds in this model, their p-value and the number of draws.
        """

        def measure(run: Run) -> Tensor:
            _, (activation,) = _output_and_hooks(run, self.inputs, hook)
            found = share(activation.cpu())
            return found / (1 - found).clamp_min(_TINY)

        own, drawn = float(measure(_run_of(self.model))), np.empty(0)

        def at(draws: int) -> Beyond:
            nonlocal drawn
            more = [one.reshape(-1) for one in self._runs(measure, len(drawn), draws)]
            drawn = np.concatenate([drawn, *(one.double().cpu().numpy() for one in more)])
            return beyond(own, drawn)

        return self._sequential(at)

    def gain(self, layer: int, head: int) -> Beyond:
        """Compare a head's gain (see the module) with that of fresh heads of its layer."""
        return self._in_family(_GAIN, lambda draws: self._beyond(layer, head, draws, _GAIN)[_GAIN])

    def evenness(self, layer: int, head: int, even: float) -> Beyond | None:
        """Compare how even a head's attention is with that of fresh (re-initialised) heads.

        Args:
            layer: The head's layer.
            head: The head's number.
            even: The evenness (1 − unevenness) that would count as even attention.

        Returns:
            The p-value that the head is more even than fresh ones, and its unevenness as score.
            None if the median fresh head of the layer is already as even as ``even``, so that a
            comparison says nothing.
        """

        def at(draws: int) -> Beyond:
            found = self._beyond(layer, head, draws, _UNEVENNESS)[_UNEVENNESS]
            drawn = self._drawn[_UNEVENNESS, layer][:draws]
            return Beyond(from_draws(-found.score, -drawn).p, len(drawn), found.score)

        before = self._asked[_UNEVENNESS]
        found = self._sequential(at, before)
        even_too = float(np.median(self._drawn[_UNEVENNESS, layer])) <= 1 - even
        if even_too:
            return None
        before.append(found.p)
        return found

    def both(self, layer: int, head: int) -> Beyond:
        """Compare a head's gain and unevenness together with those of fresh heads of its layer.

        The score is −ln of the product of the two p-values.
        """

        def at(draws: int) -> Beyond:
            found = self._beyond(layer, head, draws, _GAIN, _UNEVENNESS)
            own = -np.log(np.maximum([one.p for one in found.values()], _TINY))
            drawn = [self._drawn[name, layer][: one.draws] for name, one in found.items()]
            ranks = np.stack([np.searchsorted(np.sort(-one), -one, side="right") for one in drawn])
            return beyond(float(own.sum()), -np.log(ranks / (1 + ranks.shape[1])).sum(0))

        return self._in_family(_BOTH, at)

    def _in_family(self, name: str, at: Callable[[int], Beyond]) -> Beyond:
        """Compare one head's score with fresh heads, given the p-values of the heads asked
        before."""
        before = self._asked[name]
        found = self._sequential(at, before)
        before.append(found.p)
        return found

    def _sequential(self, at: Callable[[int], Beyond], before: Sequence[float] = ()) -> Beyond:
        """Compute a p-value with a quarter of the draws where these settle it, or else with all.

        Args:
            at: A function from the number of draws to the score compared with them.
            before: The p-values of other heads of the same family; without any the bound is
                Bonferroni's.
        """
        most = draws_of(self.model)
        first = most // 4
        if first < _FEW_DRAWS:
            return at(most)
        found = at(first)
        as_far = 1 + sum(p <= found.p for p in before)
        heads = max(1, sum(part.kind == "head" for part in components(self.model)))
        settled = found.p >= _CHANCE or found.p * heads <= self._far * as_far
        return found if settled else at(most)

    @torch.no_grad()
    def _beyond(self, layer: int, head: int, draws: int, *names: str) -> dict[str, Beyond]:
        """Compare some scores of a head with fresh heads; draws that are missing are made in one
        pass over fresh models."""
        heads = [p.head for p in components(self.model) if (p.kind, p.layer) == ("head", layer)]
        models, nothing = ceil(draws / len(heads)), np.empty(0)
        known = {name: self._drawn.get((name, layer), nothing) for name in names}
        begun = min(map(len, known.values())) // len(heads)
        new = [name for name in names if len(known[name]) < models * len(heads)]
        if new:

            def scores(run: Run) -> Tensor:
                seen = self._scored_pass(run, layer, new)
                return self._scores(run, layer, heads, new, seen)

            found = self._runs(scores, begun, models)
            pooled = torch.cat([one.reshape(-1, len(new), len(heads)) for one in found])
            for i, name in enumerate(new):
                drawn = pooled[:, i].flatten().double().cpu().numpy()
                before = known[name][: begun * len(heads)]
                self._drawn[name, layer] = np.concatenate([before, drawn])
        run, count = _run_of(self.model), models * len(heads)
        if layer not in self._clean:
            self._clean[layer] = self._scored_pass(run, layer, (_GAIN, _UNEVENNESS))
        own = self._scores(run, layer, [head], names, self._clean[layer])[:, 0]
        pairs = zip(names, own.tolist(), strict=True)
        return {name: beyond(score, self._drawn[name, layer][:count]) for name, score in pairs}

    def _scored_pass(self, run: Run, layer: int, names: Sequence[str]) -> _Seen:
        """Run a model once, keeping the activations that the scores of a layer's heads need."""
        ours = isinstance(self.model, SequenceTransformer)
        hooks = {"written": hook_of(self.model, Component("head", layer))} if _GAIN in names else {}
        if hooks and ours:
            hooks["stream"] = Site(layer, "resid_mid").name
        if _UNEVENNESS in names:
            hooks["pattern"] = Site(layer, "pattern").name
        output, kept = _output_and_hooks(run, self.inputs, *hooks.values())
        entering = None
        if isinstance(run, _Foreign) and self._replayed and _GAIN in names:
            entering = run.entering(self.inputs, layer)
        return _Seen(output, dict(zip(hooks, kept, strict=True)), entering)

    def _scores(
        self, run: Run, layer: int, heads: Sequence[int], names: Sequence[str], seen: _Seen
    ) -> Float[Tensor, "score head"]:
        found = []
        for name in names:
            if name == _GAIN:
                score = _gains(run, self.model, layer, heads, self.inputs, self.scored, seen)
            else:
                causal = getattr(self.spec, "causal", True)
                score = _unevenness(seen.kept["pattern"], heads, causal=causal)
            found.append(score)
        return torch.stack(found)

    def _runs(self, measure: Callable[[Run], Tensor], start: int, stop: int) -> Iterator[Tensor]:
        """Yield a measurement of each fresh model, or of several at once.

        Fresh models are drawn from the spec's initialisation, as many at once as memory allows.
        Without a spec they are copies in which the entries of each weight matrix are shuffled.

        Args:
            measure: A function from a run of a model to the measurement.
            start, stop: The numbers of the first fresh model and of the one after the last.
        """
        if self.spec is None:
            for model in fresh_models(self.model, stop - start, seed=self.seed + start):
                yield measure(_run_of(model))
            return
        model = SequenceTransformer(self.spec).to(self._device)
        weights = sum(p.numel() for p in model.parameters())
        rows, n = self.inputs.shape[:2]
        held = len(_STEPS) * rows * n * (max(self.spec.heads) * n + 4 * self.spec.d_model)
        size, seed = max(1, _AT_ONCE // (held + weights)), self.seed + start
        for stacked in stacked_models(self.spec, stop - start, at_once=size, seed=seed):
            there = {name: weight.to(self._device) for name, weight in stacked.items()}
            yield vmap(lambda weights: measure(_run_with(model, weights)))(there)


@dataclass(frozen=True)
class _Foreign:
    """A hooked model that is no SequenceTransformer, run from its inputs."""

    model: Any

    def __call__(self, inputs: Tensor, hooks: Hooks) -> Tensor:
        output: Tensor = self.model.run_with_hooks(inputs, fwd_hooks=hooks)
        return output

    def entering(self, inputs: Tensor, layer: int) -> tuple[HookedLayers, Tensor] | None:
        """Return the model's layers and the stream that enters one of them; None where streams are
        not finite."""
        layers = HookedLayers(self.model)
        streams = layers.streams(inputs)
        finite = all(bool(stream.isfinite().all()) for stream in streams)
        return (layers, streams[layer]) if finite else None


def _run_of(model: Any) -> Run:
    ours = isinstance(model, SequenceTransformer)
    return _run_with(model, {}) if ours else _Foreign(model)


def _run_with(model: SequenceTransformer, weights: Mapping[str, Tensor]) -> Run:
    passes = _Passes(model)
    named = {f"model.{name}": weight for name, weight in weights.items()}

    def run(given: Tensor, hooks: Hooks, layer: int | None = None) -> Tensor:
        with model.hooks(fwd_hooks=hooks):
            output: Tensor = functional_call(passes, named, (given, layer))
        return output

    return run


def _output_and_hooks(run: Run, inputs: Tensor, *names: str) -> tuple[Tensor, list[Tensor]]:
    """Run a model and return the output and the activations of some hooks."""
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any, name: str) -> None:
        kept[name] = value

    output = run(inputs, [(name, partial(keep, name=name)) for name in names])
    return output, [kept[name] for name in names]


def _gains(
    run: Run,
    model: Any,
    layer: int,
    heads: Sequence[int],
    inputs: Tensor,
    scored: Bool[Tensor, "row pos"],
    seen: _Seen,
) -> Float[Tensor, " head"]:
    output, written = seen.output, seen.kept["written"]
    away = written.mean(0) - written
    steps = torch.tensor(_STEPS, dtype=away.dtype, device=away.device)[:, None, None, None]
    found = []
    for head in heads:
        moved = steps * away[:, :, head]
        if "stream" in seen.kept:
            stepped = run((seen.kept["stream"] + moved).flatten(0, 1), [], layer)
        else:
            place = hook_of(model, Component("head", layer))
            stepped = _step_outputs(run, place, layer, head, seen, inputs, moved)
        changed = stepped.unflatten(0, moved.shape[:2]) - output
        changed = changed.double().square().sum(-1) * scored
        size = moved.double().square().sum(-1) * scored
        found.append((changed.sum((1, 2)) / size.sum((1, 2)).clamp_min(_TINY)).amax())
    return torch.stack(found)


def _step_outputs(
    run: Run, place: str, layer: int, head: int, seen: _Seen, inputs: Tensor, moved: Tensor
) -> Tensor:
    """Return the output for each step, when a head's output is moved by ``moved`` at the hook
    ``place``."""

    def move(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        value[:, :, head] += moved.flatten(0, 1)
        return value

    if seen.entering is not None:
        layers, stream = seen.entering
        stream = stream.repeat(len(moved), 1, 1)
        with layers.model.hooks(fwd_hooks=[(place, move)]):
            for at in range(layer, len(layers.layers)):
                stream = layers.block(stream, at)
        return layers.head(stream.flatten(0, 1)).unflatten(0, stream.shape[:2])
    return run(inputs.repeat(len(moved), *(1,) * (inputs.ndim - 1)), [(place, move)])


def _unevenness(
    pattern: Float[Tensor, "row all query key"], heads: Sequence[int], *, causal: bool
) -> Float[Tensor, " head"]:
    n = pattern.shape[-1]
    share = pattern[:, list(heads)].double()
    share = share / share.sum(-1, keepdim=True).clamp_min(_TINY)
    keys = torch.arange(1, n + 1) if causal else torch.full((n,), n)
    seen = keys.to(share)
    close = torch.minimum(share, 1 / seen[:, None]).sum(-1)
    return 1 - close[..., n // 2 :].mean((0, 2))
