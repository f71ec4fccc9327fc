"""Measure the effect of giving components the values that they have on other inputs.

    patch         each component gets the values that it has on paired, corrupted inputs, and the
                  rest of the model responds
    patch_paths   only one receiver sees a sender's replaced value, and everything between the two
                  keeps its clean value
    attributions  a first-order estimate of patch, from one backward pass

    receiver's input  ←  input + (replacement − what the sender writes)

A sender is

    head, ffn  its output, as it is written to the residual stream
    layer      the outputs of all its heads and its FFN
    position   the residual stream that enters a layer at that position: all that was written there
               before the layer, the embedding included

and a receiver is a head's query, key or value input, an FFN's input, or the final norm
(``logits``). In parallel blocks (GPT-J, GPT-NeoX) heads of an FFN's own layer are no senders to it,
as it does not read them. Inputs are changed before the norm, which is recomputed. Changes add up:
those of all positions of layer l and of every head and FFN from l on together give the receiver the
input that it has in the run that the values come from. Blocks without a residual connection pass on
only the output of their last sublayer: there, the only senders are those that the receiver reads
directly.

Pair the rows so that they differ in one thing: only then does an effect say what the component
carries. An effect shows that the model uses the component or path on these rows. No effect may mean
that another component compensates. Use the first-order estimate for screening only: it is wrong
where scores saturate, most of all for the parts that are needed most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp.errors import Problems, need, refuse_unless
from interp.hooks.site import Site
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablation_effects import ablate, effect_table
from interp.interventions.components import (
    Component,
    components,
    every_component,
    has_ffn,
    named_components,
    read_by_ffn,
)
from interp.interventions.replacement import need_rows, replacement
from interp.run.edits import Array, Edit, Through
from interp.run.gate import admit_batch
from interp.run.metrics import Loss, as_metric
from interp.run.run import Run
from interp.tasks.base import Batch

_INPUTS = ("q", "k", "v", "ffn", "logits")
_LOSS = Loss()


def patch(
    model: HookedModel,
    batch: Any,
    corrupted: Any,
    parts: Sequence[Component | str] | Component | str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Measure how much worse a model does when a component gets the output that it has on corrupted
    inputs.

    Args:
        model: Any hooked model; a wrapped module takes one forward pass per component.
        batch: Rows with targets.
        corrupted: Inputs of the same shape, or a batch of them; its row i is paired with row i of
            the batch.
        parts: The components to patch; every head, FFN and layer by default.
        options: ``metric``, ``rows``, ``seed``, ``tokens`` and ``backend`` of
            :func:`interp.interventions.ablation_effects.ablate`.

    Returns:
        A head table, one row per component: ``score`` is the mean increase of the loss (or by how
        much another metric gets worse), with ``low`` and ``high``.

    Raises:
        ArgumentError: if the inputs have another shape, the model does not have a component, or a
            loss is not finite.
        HookError: if a wrapped module lacks a component's hooks.
    """
    return ablate(model, batch, parts, how="swap", corrupted=corrupted, **options)


@torch.no_grad()
def patch_paths(
    model: HookedModel,
    batch: Any,
    receiver: Receiver | str,
    parts: Sequence[Component | str] | Component | str | None = None,
    *,
    how: str = "mean",
    corrupted: Any = None,
    metric: Any = _LOSS,
    seed: int = 0,
    tokens: int = 1024,
) -> pd.DataFrame:
    """Measure how much worse a model does when only one receiver sees each sender replaced.

    Args:
        model: One of our models, or a ``TransformerBridge``.
        batch: Rows with targets.
        receiver: The end of the path: a head's query, key or value input, an FFN's input, or the
            final norm (``"logits"``).
        parts: The senders; every head, FFN and layer before the receiver by default.
        how: The replacement: ``mean`` over rows, ``zero``, ``resample`` (another row's value), or
            ``swap`` (the value on ``corrupted``).
        corrupted: The inputs that ``swap`` takes its values from, paired row by row with the batch.
        metric: The metric that should get worse, given as for
            :func:`interp.interventions.ablation_effects.ablate`.
        seed: Seed of the resampled rows and of the intervals.
        tokens: At most this many positions per forward pass (at least one row); it bounds the
            memory.

    Returns:
        A table as from :func:`patch`, with one row per sender; ``site`` names the receiver.

    Raises:
        ArgumentError: if a sender does not come before the receiver, the model does not have the
            receiver, or only one of ``how="swap"`` and ``corrupted`` is given.
        HookError: if the model lacks the receiver's hook.
    """
    batch = admit_batch(model, batch)
    receiver = Receiver(receiver) if isinstance(receiver, str) else receiver
    rule, advice = "must be a Receiver", "such as Receiver('k', layer=1, head=0)"
    refuse_unless(isinstance(receiver, Receiver), "receiver", rule, receiver, advice)
    good = (how == "swap") == (corrupted is not None)
    rule = "goes with how='swap', and swap with it"
    shown = None if corrupted is None else f"inputs with how={how!r}"
    need("patch_paths", good, "corrupted", rule, shown, "give both")
    paths = paths_to(model, batch.inputs, receiver, parts, how, corrupted, seed, tokens)
    run, measured = Run(model, batch, tokens=tokens), as_metric(metric)
    rises = run.rises([*paths.values()], measured)
    found: dict[Component, np.ndarray] = {
        sender: (measured.worse * run.by_row(rise)).numpy()
        for sender, rise in zip(paths, rises, strict=True)
    }
    return effect_table(found, batch, how, seed, site=receiver.site, metric=measured)


def attributions(
    model: HookedModel,
    batch: Batch,
    corrupted: Tensor,
    parts: Sequence[Component] | None = None,
    *,
    metric: Any = _LOSS,
    tokens: int = 1024,
) -> pd.DataFrame:
    """Estimate :func:`patch` to first order: gradient · (corrupted value − own value).

    Args:
        model: Any hooked model whose layers gradients pass through.
        batch: Rows with targets.
        corrupted: Inputs of the same shape, paired row by row.
        parts: The components; every head and FFN by default.
        metric: The metric that should get worse, given as for
            :func:`interp.interventions.ablation_effects.ablate`.
        tokens: At most this many positions per forward pass (at least one row).

    Returns:
        Columns ``component``, ``layer``, ``head`` and ``score``: by how much the metric would get
        worse, averaged over rows. Sorted by absolute score.

    Raises:
        ArgumentError: if the inputs are not paired, or the model does not have a component.
        HookError: if the model lacks a component's hooks.
    """
    chosen = components(model) if parts is None else tuple(parts)
    problems, measured = Problems("attributions"), as_metric(metric)
    need_rows(problems, model, batch.inputs, chosen, "swap", corrupted, tokens)
    problems.raise_if_any()
    source = Array(corrupted, "the corrupted rows")
    edits = [replacement(model, part, "swap", source) for part in chosen]
    slopes = Run(model, batch, tokens=tokens).slopes(edits, measured)
    rows = [
        (part.kind, part.layer, part.head, measured.worse * float(slope))
        for part, slope in zip(chosen, slopes.mean(1), strict=True)
    ]
    table = pd.DataFrame(rows, columns=["component", "layer", "head", "score"])
    order = table["score"].abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)


@dataclass(frozen=True)
class Receiver:
    """The end of a patched path: the only place that sees the sender's replaced value.

    Attributes:
        input: ``q``, ``k`` or ``v`` of a head, ``ffn`` of a layer, or ``logits``.
        layer: The layer, counted from 0; −1 for ``logits``.
        head: The head, for ``q``, ``k`` and ``v``; −1 otherwise. With grouped-query attention,
            ``k`` and ``v`` count the shared key-value heads.

    Raises:
        ArgumentError: if the input is none of these, or a layer or head does not go with it.
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

    def place(self, layers: int) -> Site:
        """Return the site of the receiver in a model of so many layers."""
        if self.input == "logits":
            return Site(layers - 1, "resid_post")
        if self.input == "ffn":
            return Site(self.layer, "mlp_in")
        return Site(self.layer, f"{self.input}_input", self.head)

    @property
    def site(self) -> str:
        """The name of the receiver in tables: its hook, and its head if it has one."""
        if self.input == "logits":
            return "ln_final"
        where = self.place(self.layer + 1)
        return where.name if where.head is None else f"{where.name} head {where.head}"


def senders(model: HookedModel, receiver: Receiver, length: int = 0) -> tuple[Component, ...]:
    """Return all components before a receiver: heads, FFNs and layers.

    For ``length`` > 0 they include every position before every layer up to the receiver's.
    """
    return tuple(p for p in every_component(model, length) if _reaches(model, p, receiver))


def _reaches(model: Any, part: Component, receiver: Receiver) -> bool:
    """Return whether a component comes before the receiver; without residual, whether it is read
    directly."""
    at = model.cfg.n_layers if receiver.input == "logits" else receiver.layer
    ffn = receiver.input == "ffn"
    enters = part.kind == "position" and part.layer <= min(at, model.cfg.n_layers - 1)
    same_layer = ffn and part.kind == "head" and part.layer == at
    same_layer = same_layer and read_by_ffn(model, at) == Site(at, "resid_mid")  # not in parallel
    if getattr(getattr(model, "spec", None), "residual", True):
        return enters or same_layer or (part.kind != "position" and part.layer < at)
    last = "ffn" if at > 0 and has_ffn(model, at - 1) else "head"
    writes_last = part.kind in ("layer", last) and part.layer == at - 1
    return same_layer if ffn else writes_last or (enters and part.layer == at)


def paths_to(
    model: HookedModel,
    inputs: Tensor,
    receiver: Receiver,
    parts: Sequence[Component | str] | Component | str | None,
    how: str,
    reference: Tensor | None,
    seed: int,
    tokens: int,
) -> dict[Component, tuple[Edit, ...]]:
    """Return each sender's edits, whose effect only the receiver sees.

    The arguments are those of :func:`patch_paths`, with ``corrupted`` as ``reference``.
    """
    chosen = senders(model, receiver) if parts is None else tuple(named_components(parts))
    problems = Problems("patch_paths")
    _need_receiver(problems, model, receiver)
    need_rows(problems, model, inputs, chosen, how, reference, tokens)
    problems.raise_if_any()
    late = [part.name for part in chosen if not _reaches(model, part, receiver)]
    residual = getattr(getattr(model, "spec", None), "residual", True)
    rule = "must come before the receiver" + ("" if residual else " and be read by it directly")
    problems.need(not late, "parts", rule, late, "leave them out")
    problems.raise_if_any()
    source = None if reference is None else Array(reference, "the reference")
    place = receiver.place(model.cfg.n_layers)
    found: dict[Component, tuple[Edit, ...]] = {}
    for part in chosen:
        edits = replacement(model, part, how, source, seed)
        edits = edits if residual else edits[-1:]  # what a layer writes last is all that is passed
        found[part] = tuple(Through(place, edit) for edit in edits)
    return found


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
    """Return the number of query heads, or of key-value heads for ``k`` and ``v``, of the
    receiver's layer."""
    parts = components(model)
    heads = sum((part.kind, part.layer) == ("head", receiver.layer) for part in parts)
    shared = getattr(model.cfg, "n_key_value_heads", None)
    return shared if shared and receiver.input in ("k", "v") else heads
