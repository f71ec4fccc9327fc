"""The output without each component, all of them in a few batches.

    ablate(component):  stream after it ← stream + (replacement − what it wrote)

Heads are replaced in what they write to the stream, FFNs likewise; a *layer* is all its heads and
its FFN at once, a *position* the residual stream that enters a layer there; what can stand in is
said in :mod:`interp.heads.stand_ins`. Everything before the component is computed once
(:mod:`interp.heads.replay`), and changed copies run together. A wrapped module, whose blocks cannot
be called, runs once for each component, which is replaced at its hooks (`hook_z`, before W_O, which
is the same there; `hook_mlp_out`; `hook_resid_pre`).

Zero and mean ablation leave the model where it never is; a resampled value is one it knows, from
another row. An effect shows reliance, not what is computed; a component whose loss another makes
up for has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interp.errors import Problems
from interp.heads.effects import Component, components, places_of, replaced
from interp.heads.replay import Trace, head_hook
from interp.heads.stand_ins import Changes, StandIns, joined, need_rows, write_hooks
from interp.lens import HookedModel
from interp.store.capture import evaluating

__all__ = ["ablated", "ablated_by_rows", "every_component", "head_hooks"]

_TOKENS = 1024
_PLACES = (("position",), ("head",), ("ffn", "layer"))
"""Kinds whose stream is changed at one place: before, inside and after a layer."""


def every_component(model: HookedModel, length: int = 0) -> tuple[Component, ...]:
    """Heads, FFNs and layers; and, for ``length`` > 0, every position before every layer."""
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
    """Each component, and the output without it.

    Memory follows ``tokens``, but for one output and, where the rows are more than that, the
    stream that enters each ablated layer.

    Args:
        model: Ours, or a bridge; see :mod:`interp.heads.replay`. A wrapped module runs slowly.
        inputs: ``[row, pos(, channel)]``.
        parts: Which; every head, FFN and layer by default.
        how: What stands in for a component: ``mean``, ``zero``, ``resample`` or ``swap``.
        reference: Inputs that means and other rows' values come from; ``inputs`` by default.
        seed: Of the rows that are drawn for ``resample``.
        tokens: Of one forward pass, at most (one row at least).

    Yields:
        In the order of layers; outputs ``[row, pos, output]``.

    Raises:
        ArgumentError: for arguments that do not fit, such as components that the model does not
            have, no rows, or one row to average or resample; for activations that are not finite.
        ConformanceError: for a model that cannot be replayed.
        HookError: for a wrapped module without a component's hooks.
    """
    chosen = every_component(model) if parts is None else tuple(parts)
    stand_ins = _stand_ins(model, inputs, chosen, how, reference, seed, tokens)
    return joined(stand_ins, partial(_without, parts=chosen, tokens=tokens), tokens)


def ablated_by_rows(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    reference: Tensor | None = None,
    seed: int = 0,
    tokens: int = _TOKENS,
) -> Iterator[tuple[slice, Iterator[tuple[Component, Tensor]]]]:
    """As :func:`ablated`, all components on a few rows, then on the next: all memory follows
    ``tokens``.

    Yields:
        Which rows, and what :func:`ablated` yields, on them.
    """
    chosen = every_component(model) if parts is None else tuple(parts)
    stand_ins = _stand_ins(model, inputs, chosen, how, reference, seed, tokens)
    return (
        (rows, _without(some, parts=chosen, tokens=tokens))
        for rows, some in stand_ins.by_rows(tokens)
    )


def head_hooks(model: HookedModel) -> list[str]:
    """Where what the heads write can be read: z, or the result where it is more than z W_O."""
    return [head_hook(model, layer) for layer in range(model.cfg.n_layers)]


def _stand_ins(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component],
    how: str,
    reference: Tensor | None,
    seed: int,
    tokens: int,
) -> StandIns:
    problems = Problems("ablate")
    need_rows(problems, model, inputs, parts, how, reference, tokens)
    problems.raise_if_any()
    hooks = sorted({name for part in parts for name in _places(model, part)})
    return StandIns.of(
        model, inputs, hooks, how=how, reference=reference, seed=seed, tokens=tokens
    )  # fmt: skip


def _places(model: Any, part: Component) -> list[str]:
    """The hooks at which all that a component writes can be replaced."""
    if hasattr(model, "blocks"):
        return write_hooks(model, part)
    if part.kind == "layer":
        return places_of(model, [p for p in components(model) if p.layer == part.layer])
    return places_of(model, [part])


def _without(
    stand_ins: StandIns, parts: Sequence[Component], tokens: int
) -> Iterator[tuple[Component, Tensor]]:
    """Each component, and the output without it, on rows that fit one forward pass."""
    if not parts:
        return
    if not hasattr(stand_ins.model, "blocks"):
        yield from _by_hooks(stand_ins, parts)
        return
    inputs, layers = stand_ins.inputs, {part.layer for part in parts}
    changes = Changes(stand_ins, Trace.of(stand_ins.model, inputs, layers), layers)
    copies = max(1, tokens // (inputs.shape[0] * inputs.shape[1]))
    for layer in sorted(layers):
        for kinds in _PLACES:
            some = [part for part in parts if part.layer == layer and part.kind in kinds]
            for start in range(0, len(some), copies):
                batch = some[start : start + copies]
                outputs = list(_finished(changes, batch).split(len(inputs)))
                for part in batch:
                    yield part, outputs.pop(0)


def _finished(changes: Changes, batch: Sequence[Component]) -> Tensor:
    """The outputs without each of some components that are changed at one place."""
    layer, kind, trace = batch[0].layer, batch[0].kind, changes.trace
    with evaluating(trace.model):
        streams = torch.cat([changes.stream(part) for part in batch])
        if kind == "head":
            streams = trace.after_attention(streams, layer)
        return trace.finish(streams, layer if kind == "position" else layer + 1)


def _by_hooks(
    stand_ins: StandIns, parts: Sequence[Component]
) -> Iterator[tuple[Component, Tensor]]:
    """One forward pass a component, for models whose blocks cannot be called."""
    model, places = stand_ins.model, {part: _places(stand_ins.model, part) for part in parts}
    for layer in sorted({part.layer for part in parts}):
        here = [part for part in parts if part.layer == layer]
        values = stand_ins.on_hooks(sorted({name for part in here for name in places[part]}))
        for part in here:
            edits = [(n, partial(replaced, part=part, instead=values[n])) for n in places[part]]
            with evaluating(model):
                output = model.run_with_hooks(stand_ins.inputs, fwd_hooks=edits)
            yield part, output
