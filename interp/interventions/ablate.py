"""The model's output with each component ablated, for all components in a few batches.

    ablate(component):  stream after it ← stream + (replacement − what it wrote)

Heads are replaced in what they write to the stream, FFNs likewise; a *layer* is all its heads and
its FFN at once, a *position* the residual stream that enters a layer there; what can stand in is
said in :mod:`interp.interventions.counterfactuals`. Everything before the component is computed
once (:mod:`interp.interventions.prefix_reuse`), and changed copies run together. A model that
cannot be run from the middle on, such as a wrapped module or one with parallel blocks, runs once
for each component, which is replaced at its hooks (`hook_z`, before W_O, which is the same there;
`hook_mlp_out`; `hook_resid_pre`).

Zero and mean ablation leave the model where it never is; a resampled value is one it knows, from
another row. An effect shows reliance, not what is computed; a component whose loss another makes
up for has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.clean_run import CleanRun
from interp.interventions.components import Component, components, hooks_of, replaced
from interp.interventions.counterfactuals import (
    Changes,
    Counterfactuals,
    joined,
    need_rows,
    write_hooks,
)
from interp.interventions.prefix_reuse import Trace, can_replay, head_hook

__all__ = ["ablated", "ablated_by_rows", "every_component", "head_hooks"]

_TOKENS = 1024
_PLACES = (("position",), ("head",), ("ffn", "layer"))
"""Kinds of components grouped by where they change the stream: before, inside, after a layer."""


def every_component(model: HookedModel, length: int = 0) -> tuple[Component, ...]:
    """All heads, FFNs and layers; and, for ``length`` > 0, every position before every layer."""
    inside = components(model)
    layers = range(model.cfg.n_layers)
    return (
        *inside,
        *(Component("layer", layer) for layer in layers),
        *(Component("position", layer, position=p) for layer in layers for p in range(length)),
    )


def ablated(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    reference: Tensor | None = None,
    seed: int = 0,
    tokens: int = _TOKENS,
) -> Iterator[tuple[Component, Tensor]]:
    """Yield each component with the model's output when it is ablated.

    Memory follows ``tokens``, but for one output and, where the rows are more than that, the
    stream that enters each ablated layer.

    Args:
        model: One of our models, a ``TransformerBridge`` or a wrapped module.
        inputs: ``[row, pos(, channel)]``.
        parts: The components to ablate; every head, FFN and layer by default.
        how: What stands in for a component: ``mean``, ``zero``, ``resample`` or ``swap``.
        reference: Inputs that means and other rows' values come from; ``inputs`` by default.
        seed: Seed of the rows that are drawn for ``resample``.
        tokens: At most this many positions per forward pass (at least one row).

    Yields:
        In the order of layers; outputs ``[row, pos, output]``.

    Raises:
        ArgumentError: for arguments that do not fit, such as components that the model does not
            have, no rows, or one row to average or resample; for activations that are not finite.
        HookError: for a wrapped module without a component's hooks.
    """
    chosen = every_component(model) if parts is None else tuple(parts)
    counterfactuals, replay = _counterfactuals(model, inputs, chosen, how, reference, seed, tokens)

    def outputs(some: Counterfactuals) -> Iterator[tuple[Component, Tensor]]:
        return _without(some, chosen, tokens, replay)[1]

    return joined(counterfactuals, outputs, tokens)


def ablated_by_rows(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    reference: Tensor | None = None,
    seed: int = 0,
    tokens: int = _TOKENS,
    scored: Tensor | None = None,
) -> Iterator[tuple[slice, Tensor, Iterator[tuple[Component, Tensor]]]]:
    """Ablate all components on a few rows, then on the next ones, like :func:`ablated`.

    Memory, that of the outputs included, is bounded by ``tokens``.

    Args:
        model, inputs, parts, how, reference, seed, tokens: The arguments of :func:`ablated`.
        scored: Where the output is wanted, ``[row, pos]``; everywhere by default. Large
            vocabularies take half of a run where little of it is.

    Yields:
        The rows, the model's clean output on them, and what :func:`ablated` yields for them; with
        ``scored``, outputs are ``[scored, output]``.
    """
    chosen = every_component(model) if parts is None else tuple(parts)
    counterfactuals, replay = _counterfactuals(model, inputs, chosen, how, reference, seed, tokens)
    return (
        (rows, *_without(some, chosen, tokens, replay, None if scored is None else scored[rows]))
        for rows, some in counterfactuals.by_rows(tokens)
    )


def head_hooks(model: HookedModel) -> list[str]:
    """The hooks with what heads write, one per layer: z, or the result where that is not z W_O."""
    return [head_hook(model, layer) for layer in range(model.cfg.n_layers)]


def _counterfactuals(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component],
    how: str,
    reference: Tensor | None,
    seed: int,
    tokens: int,
) -> tuple[Counterfactuals, bool]:
    """The replacement values, and whether the model can be run from a middle layer on."""
    problems = Problems("ablate")
    need_rows(problems, model, inputs, parts, how, reference, tokens)
    problems.raise_if_any()
    replay = can_replay(model, inputs)
    places = write_hooks if replay else _places
    hooks = sorted({name for part in parts for name in places(model, part)})
    found = Counterfactuals.of(
        model, inputs, hooks, how=how, reference=reference, seed=seed, tokens=tokens
    )
    return found, replay


def _places(model: HookedModel, part: Component) -> list[str]:
    """The hooks at which everything that a component writes can be replaced."""
    if part.kind == "layer":
        return hooks_of(model, [p for p in components(model) if p.layer == part.layer])
    return hooks_of(model, [part])


def _without(
    counterfactuals: Counterfactuals,
    parts: Sequence[Component],
    tokens: int,
    replay: bool,
    scored: Tensor | None = None,
) -> tuple[Tensor, Iterator[tuple[Component, Tensor]]]:
    """The clean output on rows that fit one forward pass, and each component with its ablated
    output."""
    model, inputs = counterfactuals.model, counterfactuals.inputs
    if not replay:
        clean = CleanRun.of(model, inputs, replay=False).output
        outputs = _by_hooks(counterfactuals, parts)
        if scored is None:
            return clean, outputs
        at = scored.to(clean.device)
        return clean[at], ((part, output[at]) for part, output in outputs)
    trace = Trace.of(model, inputs, {part.layer for part in parts}, check=False)
    clean = trace.output if scored is None else trace.output[scored.to(trace.output.device)]
    return clean, _by_copies(counterfactuals, trace, parts, tokens, scored)


def _by_copies(
    counterfactuals: Counterfactuals,
    trace: Trace,
    parts: Sequence[Component],
    tokens: int,
    scored: Tensor | None,
) -> Iterator[tuple[Component, Tensor]]:
    """Yield each component's ablated output; later layers run on many changed copies at once."""
    inputs, layers = counterfactuals.inputs, {part.layer for part in parts}
    changes = Changes(counterfactuals, trace, layers)
    copies = max(1, tokens // (inputs.shape[0] * inputs.shape[1]))
    for layer in sorted(layers):
        for kinds in _PLACES:
            some = [part for part in parts if part.layer == layer and part.kind in kinds]
            for start in range(0, len(some), copies):
                batch = some[start : start + copies]
                outputs = list(_finished(changes, batch, scored).chunk(len(batch)))
                for part in batch:
                    yield part, outputs.pop(0)


def _finished(changes: Changes, batch: Sequence[Component], scored: Tensor | None) -> Tensor:
    """The outputs without each of several components that change the stream at the same place, one
    after the other: ``[copies·row, pos, output]``, or ``[copies·scored, output]``."""
    layer, kind, trace = batch[0].layer, batch[0].kind, changes.trace
    with evaluating(trace.model):
        streams = torch.cat([changes.stream(part) for part in batch])
        if kind == "head":
            streams = trace.after_attention(streams, layer)
        found = trace.finish(streams, layer if kind == "position" else layer + 1, scored)
    return found if scored is None else found[0]


def _by_hooks(
    counterfactuals: Counterfactuals, parts: Sequence[Component]
) -> Iterator[tuple[Component, Tensor]]:
    """One forward pass a component, for models that cannot be run from the middle on."""
    model = counterfactuals.model
    places = {part: _places(model, part) for part in parts}
    for layer in sorted({part.layer for part in parts}):
        here = [part for part in parts if part.layer == layer]
        values = counterfactuals.on_hooks(sorted({name for part in here for name in places[part]}))
        for part in here:
            edits = [(n, partial(replaced, part=part, instead=values[n])) for n in places[part]]
            with evaluating(model):
                output = model.run_with_hooks(counterfactuals.inputs, fwd_hooks=edits)
            yield part, output
