"""The values that replace a component, as edits of a run.

    mean      its mean over rows, position by position: removes its variation, not its offset
    zero      zero
    resample  its value on another row (no row keeps its own)
    swap      its value on the same row of other inputs (paired corrupted rows)

A head is replaced at its output (``z``, before W_O; ``result`` if it writes more than z W_O), an
FFN at ``mlp_out``, a position in the stream that enters its layer, a layer as all its heads and its
FFN at once. Zero and mean can put activations outside of the model's distribution; a resampled
value is one that the component does take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import (
    Component,
    components,
    every_component,
    has_ffn,
    need_parts,
)
from interp.run import Array, Edit, Mean, Resample, Run, Site, Swap, Zero
from interp.tasks.base import Batch

How = Literal["mean", "zero", "resample", "swap"]


def replacement(
    model: HookedModel, part: Component, how: str, inputs: Array | None = None, seed: int = 0
) -> tuple[Edit, ...]:
    """Return the edits that replace the whole output of a component.

    Args:
        model: The model; it determines at which hook a head is replaced.
        part: The component.
        how: ``mean``, ``zero``, ``resample`` or ``swap``.
        inputs: The inputs that means and other rows' values come from; the run's own by default.
        seed: Seed of the rows that are drawn for ``resample``.
    """
    at = part.position if part.kind == "position" else None

    def edit(site: Site) -> Edit:
        if how == "zero":
            return Zero(site, at=at)
        if how == "mean":
            return Mean(site, inputs=inputs, at=at)
        if how == "resample":
            return Resample(site, seed, inputs=inputs, at=at)
        return Swap(site, inputs=inputs, at=at)

    return tuple(map(edit, sites_of(model, part)))


def sites_of(model: Any, part: Component) -> Iterator[Site]:
    """Yield the hook sites that must be edited to replace a component's whole output.

    For a position it is the stream that enters the layer, and for a layer the outputs of all its
    heads and of its FFN.
    """
    if part.kind == "position":
        yield Site(part.layer, "resid_pre")
        return
    every = [head for head in components(model) if head.layer == part.layer]
    if part.kind == "head" or (part.kind == "layer" and every[:1] and every[0].kind == "head"):
        spec = getattr(model, "spec", None)
        kind = "result" if spec is not None and spec.identity_ov else "z"
        yield Site(part.layer, kind, part.head if part.kind == "head" else None)
    if part.kind != "head" and has_ffn(model, part.layer):
        yield Site(part.layer, "mlp_out")


def ablation_outputs(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    reference: Tensor | None = None,
    seed: int = 0,
    tokens: int = 1024,
) -> Iterator[tuple[Component, Tensor]]:
    """Yield each component together with the model's output when it is replaced.

    To get a number per component instead of outputs, use :func:`prooflens.ablate`, which runs
    several components in one batch.

    Args:
        model: One of our models, a ``TransformerBridge`` or a wrapped module.
        inputs: Token ids or real inputs, ``[row, pos(, channel)]``.
        parts: The components; every head, FFN and layer by default.
        how: The replacement of a component's output: ``mean``, ``zero``, ``resample`` or ``swap``.
        reference: The inputs that means and other rows' values come from; ``inputs`` by default.
        seed: Seed of the rows that are drawn for ``resample``.
        tokens: At most this many positions per forward pass (at least one row).

    Yields:
        In the order of ``parts``, the component and the outputs ``[row, pos, output]``.

    Raises:
        ArgumentError: if arguments do not fit, such as components that the model does not have, no
            rows, or one row to average or resample; if activations are not finite.
        HookError: if a wrapped module lacks a component's hooks.
    """
    chosen = every_component(model) if parts is None else tuple(parts)
    problems = Problems("ablation_outputs")
    need_rows(problems, model, inputs, chosen, how, reference, tokens)
    problems.raise_if_any()
    source = None if reference is None else Array(reference, "the reference")
    edits = [replacement(model, part, how, source, seed) for part in chosen]
    return zip(chosen, outputs_with(model, inputs, edits, tokens), strict=True)


def outputs_with(
    model: HookedModel, inputs: Tensor, many: Sequence[tuple[Edit, ...]], tokens: int
) -> Iterator[Tensor]:
    """Yield the model's output ``[row, pos, output]`` for each entry of ``many``, with its edits
    made."""
    everywhere = torch.ones(inputs.shape[:2], dtype=torch.bool)
    unscored = torch.zeros(inputs.shape[:2], dtype=torch.long)
    run = Run(model, Batch(inputs.cpu(), unscored, everywhere), tokens=tokens)
    for edits in many:
        pieces = [output for _, output in run.with_(*edits).outputs()]
        yield torch.cat(pieces).unflatten(0, everywhere.shape)


def need_rows(
    problems: Problems,
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component],
    how: str,
    reference: Tensor | None,
    tokens: int,
) -> None:
    """Record every problem of the arguments that say which components are replaced, and by what."""
    known = ", ".join(get_args(How))
    problems.need(how in get_args(How), "how", f"must be one of {known}", how, "pick one")
    problems.need(tokens >= 1, "tokens", "must be at least 1", tokens, "take about 1024")
    shape = tuple(inputs.shape)
    filled = inputs.ndim > 1 and 0 not in shape
    rule = "must be [row, pos(, channel)] with a row at least"
    problems.need(filled, "inputs", rule, shape, "give rows")
    if not filled:
        return
    need_parts(problems, model, parts, inputs.shape[1])
    source = inputs if reference is None else reference
    same = source.shape[1:] == inputs.shape[1:]
    rule = f"must have rows of shape {shape[1:]}"
    problems.need(same, "reference", rule, tuple(source.shape[1:]), "take rows of one length")
    problems.need(len(source) > 0, "reference", "must have rows", len(source), "give some")
    alone = len(source) == 1 and (how == "resample" or (how == "mean" and reference is None))
    what = "to resample" if how == "resample" else "to average: one row is its own mean"
    problems.need(not alone, "inputs", f"must have two rows {what}", len(source), "give more")
    paired = how != "swap" or (reference is not None and len(reference) == len(inputs))
    rule = f"must be the {len(inputs)} paired rows to swap in"
    problems.need(
        paired, "reference", rule, None if reference is None else len(reference), "give them"
    )
