"""Path patching: what a sender changes through one receiver alone.

    receiver's input  ←  input + (replacement − what the sender writes)

Every part between sender and receiver keeps its clean value, so only the direct path is patched;
what comes after the receiver responds. A sender is

    head, ffn  what it writes to the residual stream
    layer      all that its heads and its FFN write
    position   the residual stream that enters a layer there: all that is written at that position
               before the layer, the embedding included

and a receiver is a head's query, key or value input, an FFN's input, or the final norm
(``logits``). Inputs are changed in front of the norm, which is computed anew. Changes add up: those
of all positions of layer l and of every head and FFN from l on make the receiver's input that of
the run they come from. Blocks without residual pass on only what their last sublayer writes: there
the only senders are those that the receiver reads itself. Many senders of a receiver run in one
batch, from the receiver's layer on.

Attribution patching estimates every patch from one gradient, through TransformerLens' tool. It is
for screening: a first-order estimate, wrong where scores saturate.

A path with an effect is used on these inputs; one without may have a twin that makes up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablate import every_component
from interp.interventions.components import Component, components, has_ffn
from interp.interventions.counterfactuals import (
    Changes,
    Counterfactuals,
    joined,
    need_rows,
    write_hooks,
)
from interp.interventions.prefix_reuse import Stream, Trace, need_replay

__all__ = ["Receiver", "attributions", "path_patched", "senders"]

_INPUTS = ("q", "k", "v", "ffn", "logits")


@dataclass(frozen=True)
class Receiver:
    """The end of a patched path: the one place that sees the sender's replaced value.

    Attributes:
        input: ``q``, ``k`` or ``v`` of a head, ``ffn`` of a layer, or ``logits``.
        layer: The layer, counted from 0; −1 for ``logits``.
        head: The head, for ``q``, ``k`` and ``v``; −1 otherwise. Where query heads share keys and
            values, ``k`` and ``v`` count the shared ones.

    Raises:
        ArgumentError: for another input, or a layer or head that does not go with it.
    """

    input: str
    layer: int = -1
    head: int = -1

    def __post_init__(self) -> None:
        problems = Problems("Receiver")
        rule = f"must be one of {', '.join(_INPUTS)}"
        problems.need(self.input in _INPUTS, "input", rule, self.input, "pick one")
        headed = (self.head >= 0) == (self.input in ("q", "k", "v"))
        problems.need(headed, "head", "goes with q, k and v", self.head, "name it there only")
        placed = (self.layer >= 0) == (self.input != "logits")
        problems.need(placed, "layer", "goes with all but logits", self.layer, "name it there only")
        problems.raise_if_any()

    @property
    def site(self) -> str:
        """The name of the receiver in tables: its hook, and its head where it has one."""
        if self.input == "logits":
            return "ln_final"
        if self.input == "ffn":
            return f"blocks.{self.layer}.hook_mlp_in"
        return f"blocks.{self.layer}.attn.hook_{self.input}_input head {self.head}"


def senders(model: HookedModel, receiver: Receiver, length: int = 0) -> tuple[Component, ...]:
    """All components in front of a receiver: heads, FFNs and layers.

    For ``length`` > 0 also every position before every layer up to the receiver's.
    """
    return tuple(p for p in every_component(model, length) if _reaches(model, p, receiver))


def _reaches(model: Any, part: Component, receiver: Receiver) -> bool:
    """Whether a component comes before the receiver and is read by it directly."""
    at = model.cfg.n_layers if receiver.input == "logits" else receiver.layer
    ffn = receiver.input == "ffn"
    enters = part.kind == "position" and part.layer <= min(at, model.cfg.n_layers - 1)
    same_layer = ffn and part.kind == "head" and part.layer == at
    if getattr(getattr(model, "spec", None), "residual", True):
        return enters or same_layer or (part.kind != "position" and part.layer < at)
    last = "ffn" if at > 0 and has_ffn(model, at - 1) else "head"
    writes_last = part.kind in ("layer", last) and part.layer == at - 1
    return same_layer if ffn else writes_last or (enters and part.layer == at)


def path_patched(
    model: HookedModel,
    inputs: Tensor,
    receiver: Receiver,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    reference: Tensor | None = None,
    seed: int = 0,
    tokens: int = 1024,
) -> Iterator[tuple[Component, Tensor]]:
    """Yield each sender with the model's output when only the receiver sees the sender replaced.

    Memory follows ``tokens``, as for :func:`interp.interventions.ablate.ablated`.

    Args:
        model: Ours, or a bridge; see :mod:`interp.interventions.prefix_reuse`.
        inputs: ``[row, pos(, channel)]``.
        receiver: Where the path ends.
        parts: What comes before it; every head, FFN and layer by default. A ``layer`` sends what
            its heads and its FFN write, together; ``Component("position", l, position=p)`` sends
            the residual stream that enters layer l at position p. Each goes to the receiver
            directly, and everything between is as it was. See :func:`senders`.
        how, reference, seed: The replacement, as for :func:`interp.interventions.ablate.ablated`;
            with paired corrupted rows for ``reference`` that is ``how="swap"``.
        tokens: At most this many positions per forward pass (at least one row).

    Yields:
        In the order of ``parts``; outputs ``[row, pos, output]``.

    Raises:
        ArgumentError: for a sender or receiver that the model does not have, a sender that is not
            in front of the receiver, or arguments that :func:`interp.interventions.ablate.ablated`
            refuses.
        ConformanceError: for a model that cannot be replayed.
        HookError: for a wrapped module.
    """
    need_replay(model)
    chosen = senders(model, receiver) if parts is None else tuple(parts)
    problems = Problems("path_patched")
    _need_receiver(problems, model, receiver)
    need_rows(problems, model, inputs, chosen, how, reference, tokens)
    problems.raise_if_any()
    late = [part.name for part in chosen if not _reaches(model, part, receiver)]
    residual = getattr(getattr(model, "spec", None), "residual", True)
    rule = "must come before the receiver" + ("" if residual else " and be read by it directly")
    problems.need(not late, "parts", rule, late, "leave them out")
    problems.raise_if_any()
    hooks = sorted({name for part in chosen for name in write_hooks(model, part)})
    counterfactuals = Counterfactuals.of(
        model, inputs, hooks, how=how, reference=reference, seed=seed, tokens=tokens
    )
    return joined(
        counterfactuals, partial(_paths, receiver=receiver, parts=chosen, tokens=tokens), tokens
    )


def _need_receiver(problems: Problems, model: Any, receiver: Receiver) -> None:
    layers = model.cfg.n_layers
    there = receiver.layer < layers
    problems.need(there, "layer", f"must be below {layers}", receiver.layer, "layers count from 0")
    if not there:
        return
    heads = _heads(model, receiver)
    rule = f"must be one of the {heads} {receiver.input} heads of layer {receiver.layer}"
    problems.need(receiver.head < heads, "head", rule, receiver.head, "count those")
    reads = receiver.input != "ffn" or has_ffn(model, receiver.layer)
    problems.need(reads, "layer", "must have an FFN to receive", receiver.layer, "take another")


def _heads(model: Any, receiver: Receiver) -> int:
    """How many query heads, or key and value heads, the receiver's layer has."""
    parts = components(model)
    heads = sum((part.kind, part.layer) == ("head", receiver.layer) for part in parts)
    shared = getattr(model.cfg, "n_key_value_heads", None)
    return shared if shared and receiver.input in ("k", "v") else heads


def _paths(
    counterfactuals: Counterfactuals, receiver: Receiver, parts: Sequence[Component], tokens: int
) -> Iterator[tuple[Component, Tensor]]:
    """What :func:`path_patched` yields, for rows that fit one forward pass."""
    if not parts:
        return
    inputs, model = counterfactuals.inputs, counterfactuals.model
    ends = model.cfg.n_layers if receiver.input == "logits" else receiver.layer
    layers = {part.layer for part in parts}
    changes = Changes(counterfactuals, Trace.of(model, inputs, {*layers, ends}), layers)
    clean = changes.trace.before(ends)
    if receiver.input == "ffn":
        clean = changes.trace.inside(ends)[f"blocks.{ends}.hook_resid_mid"]
    copies = max(1, tokens // (inputs.shape[0] * inputs.shape[1]))
    for start in range(0, len(parts), copies):
        batch = parts[start : start + copies]
        with evaluating(model):
            change = torch.cat([changes.of(part) for part in batch])
            received = _received(changes.trace, receiver, clean.repeat(len(batch), 1, 1), change)
        outputs = list(received.split(len(inputs)))
        del received, change
        for part in batch:
            yield part, outputs.pop(0)


def _received(trace: Trace, receiver: Receiver, clean: Stream, change: Stream) -> Tensor:
    """The outputs when the receiver reads changed copies of its clean input."""
    layer = receiver.layer
    if receiver.input == "logits":
        return trace.finish(clean + change, trace.n_layers)
    if receiver.input == "ffn":
        return trace.finish(trace.after_attention(clean, layer, clean + change), layer + 1)
    with _SplitInputs(trace.model) as model:

        def patch(value: Tensor, hook: Any) -> Tensor:
            value = value.clone()
            value[:, :, receiver.head] += change
            return value

        name, _, _ = receiver.site.partition(" ")
        with model.hooks(fwd_hooks=[(name, patch)]):
            stream = trace.block(clean, layer)
    return trace.finish(stream, layer + 1)


class _SplitInputs:
    """Context manager that gives each head its own copy of the stream (``use_split_qkv_input``)."""

    def __init__(self, model: Any) -> None:
        self.model, self.before = model, bool(model.cfg.use_split_qkv_input)

    def __enter__(self) -> Any:
        self.model.set_use_split_qkv_input(True)
        return self.model

    def __exit__(self, *_: object) -> None:
        self.model.set_use_split_qkv_input(self.before)


def attributions(
    model: HookedModel,
    clean: Tensor,
    corrupt: Tensor,
    metric: Callable[[Tensor], Tensor],
) -> pd.DataFrame:
    """First-order estimate of patching each head and FFN from corrupt to clean.

    TransformerLens' ``attribution_patch``; what it says of limits holds (token ids, models with
    an FFN, at z W_O: the identity term b is left out).

    Args:
        model: A model in evaluation mode.
        clean, corrupt: Token ids ``[row, pos]``, paired row by row.
        metric: A function from one row's output ``[1, pos, output]`` to a scalar.

    Returns:
        Columns ``component``, ``layer``, ``head`` and ``score``: the sum over positions, averaged
        over rows; the change of the metric that patching would bring. Sorted by absolute score.

    Raises:
        ArgumentError: for a model without FFNs or in training mode, or inputs that are not paired
            tokens.
    """
    _need_attributable(model, clean, corrupt)
    from interp.hooks.transformer_lens_adapter import attribution_patch

    scores = attribution_patch(model, clean, corrupt, metric).node_scores
    kinds = {"attn_head_out": "head", "mlp_out": "ffn"}
    rows = [
        (kinds[node.kind], node.layer, -1 if node.head is None else node.head, score)
        for node, score in scores.items()
        if node.kind in kinds
    ]
    table = pd.DataFrame(rows, columns=["component", "layer", "head", "score"])
    summed = table.groupby(["component", "layer", "head"], as_index=False)["score"].sum()
    order = summed["score"].abs().sort_values(ascending=False, kind="stable").index
    return summed.loc[order].reset_index(drop=True)


def _need_attributable(model: Any, clean: Tensor, corrupt: Tensor) -> None:
    problems, layers = Problems("attributions"), range(model.cfg.n_layers)
    kinds = ("attn.hook_z", "hook_mlp_out")
    names = ["hook_embed", *(f"blocks.{layer}.{kind}" for layer in layers for kind in kinds)]
    lacking = [name for name in names if name not in model.hook_dict]
    advice = "ablate (ablate) or patch paths (path_patched) instead"
    problems.need(
        not lacking,
        "model",
        "must have heads and an FFN in every layer, with hooks",
        f"none at {', '.join(lacking)}",
        advice,
    )
    training = any(module.training for module in model.modules())
    problems.need(not training, "model", "must be in evaluation mode", "training", "call eval()")
    shapes = tuple(clean.shape), tuple(corrupt.shape)
    paired = clean.ndim == 2 and len(clean) > 0 and shapes[0] == shapes[1]
    rule = "must be tokens [row, pos], paired, of one shape"
    problems.need(paired, "clean, corrupt", rule, shapes, "give a corrupted row for each clean one")
    problems.raise_if_any()
