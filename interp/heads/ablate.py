"""The output without each component, all of them in a few batches.

    ablate(component):  stream after it ← stream + (replacement − what it wrote)

mean      its mean over rows, position by position: its variation is removed, not its offset
zero      nothing
resample  what it wrote on another row (no row keeps its own)
swap      what it wrote on the row of the same place in other inputs (paired corrupted rows)

Heads are replaced in what they write to the stream (`z W_O`, with the identity term b where there
is one), FFNs likewise; a *layer* is all its heads and its FFN at once, a *position* the residual
stream that enters a layer there. Everything before the component is computed once
(:mod:`interp.heads.replay`), and changed copies run together. A wrapped module, whose blocks cannot
be called, runs once for each component, which is replaced at its hooks (`hook_z`, before W_O, which
is the same there; `hook_mlp_out`; `hook_resid_pre`).

Zero and mean ablation leave the model where it never is; a resampled value is one it knows, from
another row. An effect shows reliance, not what is computed; a component whose loss another makes
up for has none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.heads.effects import Component, components, places_of, replaced
from interp.heads.replay import Stream, Trace, has_ffn
from interp.lens import HookedModel
from interp.store.capture import evaluating

__all__ = ["How", "Writes", "ablated", "every_component", "head_hooks", "replacements", "writes"]

How = Literal["mean", "zero", "resample", "swap"]
_TOKENS = 1024
_Key = TypeVar("_Key", bound=Hashable)

Writes = Mapping[tuple[str, int], Tensor]
"""(``head`` | ``ffn`` | ``stream``, layer) → what is written, ``[row, pos, head, d_model]`` for
heads and ``[row, pos, d_model]`` otherwise; ``stream`` is what enters the layer."""


def every_component(model: HookedModel, length: int = 0) -> tuple[Component, ...]:
    """Heads, FFNs and layers; and, for ``length`` > 0, every position before every layer."""
    layers = range(model.cfg.n_layers)
    return (
        *components(model),
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

    Args:
        model: Ours, or a bridge; see :mod:`interp.heads.replay`. A wrapped module runs slowly.
        inputs: ``[row, pos(, channel)]``.
        parts: Which; every head, FFN and layer by default.
        how: What stands in for a component: ``mean``, ``zero``, ``resample`` or ``swap``.
        reference: Inputs that means and other rows' values come from; ``inputs`` by default.
        seed: Of the rows that are drawn for ``resample``.
        tokens: Of one forward pass, at most (one copy of the inputs at least).

    Yields:
        In the order of layers; outputs ``[row, pos, output]``.

    Raises:
        ArgumentError: for arguments that do not fit; ConformanceError: for a model that cannot be
            replayed; HookError: for a wrapped module without a component's hooks.
    """
    if not hasattr(model, "blocks"):
        yield from _by_hooks(model, inputs, parts, how, reference, seed)
        return
    trace = Trace.of(model, inputs, keep=head_hooks(model))
    own, values = writes(trace), replacements(trace, how, reference, seed)
    chosen = every_component(model) if parts is None else parts
    copies = max(1, tokens // (inputs.shape[0] * inputs.shape[1]))
    for layer in range(trace.n_layers):
        here = [part for part in chosen if part.layer == layer]
        for kinds in (("position",), ("head",), ("ffn", "layer")):  # one place of the stream each
            some = [part for part in here if part.kind in kinds]
            for start in range(0, len(some), copies):
                batch = some[start : start + copies]
                changed = torch.cat([_changed(trace, part, own, values) for part in batch])
                outputs = _finish(trace, changed, layer, batch[0].kind)
                yield from zip(batch, outputs.split(len(inputs)), strict=True)


def head_hooks(model: Any) -> list[str]:
    """Where what the heads write can be read: z, or the result where it is more than z W_O."""
    spec = getattr(model, "spec", None)
    name = "hook_result" if spec is not None and spec.identity_ov else "hook_z"
    return [f"blocks.{layer}.attn.{name}" for layer in range(model.cfg.n_layers)]


def _head_writes(trace: Trace, layer: int) -> Float[Tensor, "row pos head d_model"]:
    """What each head of a layer writes to the residual stream, the output bias left out."""
    at = f"blocks.{layer}.attn."
    if at + "hook_result" in trace.cache:
        return trace.cache[at + "hook_result"]
    w_o = trace.model.blocks[layer].attn.W_O
    return torch.einsum("rphd,hdm->rphm", trace.cache[at + "hook_z"], w_o.detach())


def writes(trace: Trace) -> dict[tuple[str, int], Tensor]:
    """What every part of the model writes, and the streams between."""
    found: dict[tuple[str, int], Tensor] = {}
    for layer in range(trace.n_layers):
        found["head", layer] = _head_writes(trace, layer)
        found["stream", layer] = trace.before(layer)
        if has_ffn(trace.model, layer):
            found["ffn", layer] = trace.cache[f"blocks.{layer}.hook_mlp_out"]
    return found


def replacements(trace: Trace, how: str, reference: Tensor | None, seed: int) -> Writes:
    """What stands in for what every part of the model writes; see the head of this module.

    Raises:
        ArgumentError: for arguments that do not fit.
    """
    _check(how, trace.inputs, reference)
    source = writes(trace)
    if reference is not None and how != "zero":
        kept = head_hooks(trace.model)
        source = writes(Trace.of(trace.model, reference, keep=kept, check=False))
    return _stand_ins(source, how, len(trace.inputs), seed)


def _stand_ins(source: Mapping[_Key, Tensor], how: str, rows: int, seed: int) -> dict[_Key, Tensor]:
    """What stands in for values ``[row or 1, …]``, made of those of the source's rows."""
    if how == "swap":
        return dict(source)
    if how == "zero":
        return {key: torch.zeros_like(value[:1]) for key, value in source.items()}
    if how == "mean":
        return {key: value.mean(0, keepdim=True) for key, value in source.items()}
    others = _other_rows(len(next(iter(source.values()))), seed)
    others = others[torch.arange(rows) % len(others)]
    return {key: value[others] for key, value in source.items()}


def _other_rows(rows: int, seed: int) -> Tensor:
    """For each row another one: a random cycle through all of them."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return order.roll(1)[order.argsort()]


def _changed(trace: Trace, part: Component, own: Writes, values: Writes) -> Stream:
    """The stream right after the component's place, without the component."""
    layer = part.layer

    def difference(kind: str) -> Tensor:
        key = (kind, layer)
        return values[key] - own[key] if key in own else torch.zeros(())

    if part.kind == "head":
        return trace.between(layer) + difference("head")[:, :, part.head]
    if part.kind == "position":
        stream = trace.before(layer).clone()
        stream[:, part.position] += difference("stream")[:, part.position]
        return stream
    after = trace.before(layer + 1) + difference("ffn")
    if part.kind == "ffn":
        return after
    replaces = not getattr(trace.model.blocks[layer], "residual", True) and ("ffn", layer) in own
    return after if replaces else after + difference("head").sum(2)


def _finish(trace: Trace, streams: Stream, layer: int, kind: str) -> Tensor:
    with torch.no_grad():
        if kind == "head":
            streams = trace.after_attention(streams, layer)
    return trace.finish(streams, layer if kind == "position" else layer + 1)


def _by_hooks(
    model: Any,
    inputs: Tensor,
    parts: Sequence[Component] | None,
    how: str,
    reference: Tensor | None,
    seed: int,
) -> Iterator[tuple[Component, Tensor]]:
    """One forward pass a component, for models whose blocks cannot be called."""
    _check(how, inputs, reference)
    chosen = sorted(every_component(model) if parts is None else parts, key=lambda p: p.layer)
    places = {part: _places(model, part) for part in chosen}
    hooks = sorted({name for names in places.values() for name in names})
    with evaluating(model):
        source = inputs if reference is None or how == "zero" else reference
        _, cache = model.run_with_cache(source, names_filter=hooks, return_cache_object=False)
        values = _stand_ins({name: cache[name] for name in hooks}, how, len(inputs), seed)
    for part in chosen:
        edits = [(n, partial(replaced, part=part, instead=values[n])) for n in places[part]]
        with evaluating(model):
            output = model.run_with_hooks(inputs, fwd_hooks=edits)
        yield part, output


def _places(model: Any, part: Component) -> list[str]:
    """The hooks at which all that a component writes can be replaced."""
    if part.kind == "layer":
        inside = [p for p in components(model) if p.layer == part.layer]
        return places_of(model, inside)
    return places_of(model, [part])


def _check(how: str, inputs: Tensor, reference: Tensor | None) -> None:
    problems = Problems("ablate")
    problems.need(
        how in get_args(How), "how", f"must be one of {', '.join(get_args(How))}", how, "pick one"
    )
    source = inputs if reference is None else reference
    same = source.shape[1:] == inputs.shape[1:]
    rule = f"must have rows of shape {tuple(inputs.shape[1:])}"
    problems.need(same, "reference", rule, tuple(source.shape[1:]), "take rows of one length")
    enough = how != "resample" or len(source) >= 2
    problems.need(enough, "inputs", "must have two rows to resample", len(source), "give more")
    paired = how != "swap" or (reference is not None and len(reference) == len(inputs))
    rule = f"must be the {len(inputs)} paired rows to swap in"
    problems.need(
        paired, "reference", rule, None if reference is None else len(reference), "give them"
    )
    problems.raise_if_any()
