"""Path patching: what a sender changes through one receiver alone.

    receiver's input  ←  input + (replacement − what the sender writes)

Every part between sender and receiver keeps its clean value, so only the direct path is patched;
what comes after the receiver responds. A sender is a head or an FFN; a receiver is a head's
query, key or value input, an FFN's input, or the final norm (``logits``). Inputs are changed in
front of the norm, which is computed anew. All senders of a receiver run in one batch, from the
receiver's layer on.

Attribution patching estimates every patch from one gradient, through TransformerLens' tool. It is
for screening: a first-order estimate, wrong where scores saturate.

A path with an effect is used on these inputs; one without may have a twin that makes up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp.errors import Problems
from interp.heads.ablate import Writes, head_hooks, replacements, writes
from interp.heads.effects import Component, components
from interp.heads.replay import Stream, Trace
from interp.lens import HookedModel

__all__ = ["Receiver", "attributions", "path_patched", "senders"]

_INPUTS = ("q", "k", "v", "ffn", "logits")


@dataclass(frozen=True)
class Receiver:
    """Where a patched path ends.

    Attributes:
        input: ``q``, ``k`` or ``v`` of a head, ``ffn`` of a layer, or ``logits``.
        layer: Counted from 0; −1 for ``logits``.
        head: Of a head; −1 otherwise. Where query heads share keys and values, ``k`` and ``v``
            count those that are shared.

    Raises:
        ArgumentError: for another input.
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


def senders(model: HookedModel, receiver: Receiver) -> tuple[Component, ...]:
    """Heads and FFNs in front of a receiver."""
    if receiver.input == "logits":
        return components(model)
    here = ("head",) if receiver.input == "ffn" else ()
    return tuple(
        part for part in components(model)
        if part.layer < receiver.layer or (part.layer == receiver.layer and part.kind in here)
    )  # fmt: skip


@torch.no_grad()
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
) -> list[tuple[Component, Tensor]]:
    """Each sender, and the output when the receiver alone does not see it.

    Args:
        model: Ours, or a bridge; see :mod:`interp.heads.replay`.
        inputs: ``[row, pos(, channel)]``.
        receiver: Where the path ends.
        parts: Heads and FFNs in front of it; all by default.
        how, reference, seed: The replacement, as for :func:`interp.heads.ablate.ablated`; with
            paired corrupted rows for ``reference`` that is ``how="swap"``.
        tokens: Of one forward pass, at most.

    Raises:
        ArgumentError: for a sender that is not in front of the receiver, or a head that the model
            does not have.
        HookError: for a wrapped module.
    """
    allowed = senders(model, receiver)
    chosen = allowed if parts is None else tuple(parts)
    problems = Problems("path_patched")
    late = [part.name for part in chosen if part not in allowed]
    problems.need(not late, "parts", "must come before the receiver", late, "leave them out")
    heads = _heads(model, receiver)
    rule = f"must be one of the {heads} {receiver.input} heads of layer {receiver.layer}"
    problems.need(receiver.head < heads, "head", rule, receiver.head, "count those")
    problems.raise_if_any()
    trace = Trace.of(model, inputs, keep=head_hooks(model))
    own, values = writes(trace), replacements(trace, how, reference, seed)
    copies = max(1, tokens // (inputs.shape[0] * inputs.shape[1]))
    found: list[tuple[Component, Tensor]] = []
    for start in range(0, len(chosen), copies):
        batch = chosen[start : start + copies]
        change = torch.cat([_change(part, own, values) for part in batch])
        outputs = _received(trace, receiver, change)
        found += zip(batch, outputs.split(len(inputs)), strict=True)
    return found


def _heads(model: Any, receiver: Receiver) -> int:
    """How many queries, or keys and values, the receiver's layer has."""
    parts = components(model)
    heads = sum((part.kind, part.layer) == ("head", receiver.layer) for part in parts)
    shared = getattr(model.cfg, "n_key_value_heads", None)
    return shared if shared and receiver.input in ("k", "v") else heads


def _change(part: Component, own: Writes, values: Writes) -> Stream:
    difference = values[part.kind, part.layer] - own[part.kind, part.layer]
    return difference[:, :, part.head] if part.kind == "head" else difference


def _received(trace: Trace, receiver: Receiver, change: Stream) -> Tensor:
    copies, layer = len(change) // len(trace.inputs), receiver.layer

    def clean(stream: Tensor) -> Tensor:
        return stream.repeat(copies, 1, 1)

    if receiver.input == "logits":
        return trace.finish(clean(trace.before(trace.n_layers)) + change, trace.n_layers)
    if receiver.input == "ffn":
        mid = clean(trace.between(layer))
        return trace.finish(trace.after_attention(mid, layer, mid + change), layer + 1)
    stream = clean(trace.before(layer))
    with _SplitInputs(trace.model) as model:

        def patch(value: Tensor, hook: Any) -> Tensor:
            value = value.clone()
            value[:, :, receiver.head] += change
            return value

        name = f"blocks.{layer}.attn.hook_{receiver.input}_input"
        with model.hooks(fwd_hooks=[(name, patch)]):
            stream = trace.block(stream, layer)
    return trace.finish(stream, layer + 1)


class _SplitInputs:
    """Gives each head its own copy of the stream for a while."""

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
        model: In evaluation mode.
        clean, corrupt: Tokens ``[row, pos]``, paired.
        metric: From one row's output ``[1, pos, output]`` to a scalar.

    Returns:
        Columns ``component``, ``layer``, ``head`` and ``score``: the sum over positions, averaged
        over rows; the change of the metric that patching would bring. Sorted by absolute score.
    """
    from interp.lens import attribution_patch

    scores = attribution_patch(model, clean, corrupt, metric).node_scores
    kinds = {"attn_head_out": "head", "mlp_out": "ffn"}
    rows = [
        (kinds[node.kind], node.layer, -1 if node.head is None else node.head, score)
        for node, score in scores.items() if node.kind in kinds
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["component", "layer", "head", "score"])
    summed = table.groupby(["component", "layer", "head"], as_index=False)["score"].sum()
    order = summed["score"].abs().sort_values(ascending=False, kind="stable").index
    return summed.loc[order].reset_index(drop=True)
