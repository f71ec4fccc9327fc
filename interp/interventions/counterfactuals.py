"""The values that replace what a component writes when it is ablated or patched.

    mean      its mean over rows, position by position: its variation is removed, not its offset
    zero      nothing
    resample  what it wrote on another row (no row keeps its own)
    swap      what it wrote on the row of the same place in other inputs (paired corrupted rows)

Rows are taken a few at a time, a layer's writes are computed when they are needed, and a head's
share of the stream (`z W_O`, with the identity term b where there is one) only for the head that is
replaced. So memory follows the tokens of one forward pass; means, which need every row before any
is used, are running sums. The difference that a replacement makes is linear in what is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import Component, has_ffn, need_parts
from interp.interventions.prefix_reuse import Stream, Trace, head_hook, not_finite

__all__ = [
    "Changes",
    "Counterfactuals",
    "How",
    "Values",
    "joined",
    "mean_values",
    "need_rows",
    "write_hooks",
]

How = Literal["mean", "zero", "resample", "swap"]

Values = Mapping[str, Tensor]
"""Hook → the values there, ``[row, pos, …]``, or a single row for all."""


@dataclass(frozen=True)
class Counterfactuals:
    """The replacement values for some rows.

    Attributes:
        model: The model that was run.
        how: ``mean``, ``zero``, ``resample`` or ``swap``.
        inputs: The inputs of the rows on which components are replaced, ``[row, pos(, channel)]``.
        others: For each row, the row whose values it gets; None where it gets no other row's.
        means: Hook → mean over the reference's rows ``[1, pos, …]``, for ``mean``.
    """

    model: Any
    how: str
    inputs: Tensor
    others: Tensor | None
    means: Values

    @classmethod
    def of(
        cls,
        model: HookedModel,
        inputs: Tensor,
        hooks: Sequence[str],
        *,
        how: str,
        reference: Tensor | None,
        seed: int,
        tokens: int,
    ) -> Counterfactuals:
        """Prepare the replacement values; the arguments have passed :func:`need_rows`."""
        source = inputs if reference is None else reference
        means = mean_values(model, source, hooks, tokens) if how == "mean" else {}
        others = None
        if how in ("resample", "swap"):
            cycle = torch.arange(len(source))
            if how == "resample":
                cycle = _other_rows(len(source), seed)
            others = source[cycle[torch.arange(len(inputs)) % len(source)]]
        return cls(model, how, inputs, others, means)

    def by_rows(self, tokens: int) -> Iterator[tuple[slice, Counterfactuals]]:
        """The same a few rows at a time, of at most ``tokens`` positions (one row at least)."""
        for rows in _slices(self.inputs, tokens):
            others = None if self.others is None else self.others[rows]
            yield rows, replace(self, inputs=self.inputs[rows], others=others)

    def on_hooks(self, hooks: Sequence[str]) -> Values:
        """The replacement values at some hooks, for a model that is run as a whole."""
        if self.how == "mean":
            return {name: self.means[name] for name in hooks}
        source = self.inputs[:1] if self.others is None else self.others
        with evaluating(self.model):
            _, cache = self.model.run_with_cache(
                source, names_filter=hooks, return_cache_object=False
            )
        found = {name: cache[name] for name in hooks}
        return _zeros(found) if self.how == "zero" else found


class Changes:
    """What the counterfactuals change in what each part writes, where a model can be replayed.

    Holds one layer's values at a time.

    Args:
        counterfactuals: The replacement values.
        trace: The clean run of the rows on which components are replaced.
        layers: The layers that will be asked for.
    """

    def __init__(self, counterfactuals: Counterfactuals, trace: Trace, layers: set[int]) -> None:
        self.trace, self._counterfactuals, self._layer = trace, counterfactuals, -1
        self._own: Values = {}
        self._instead: Values = {}
        self._other: Trace | None = None
        if counterfactuals.others is not None:
            self._other = Trace.of(trace.model, counterfactuals.others, layers, check=False)

    def inside(self, layer: int) -> Values:
        """The activations inside a layer of the unchanged model.

        See :meth:`interp.interventions.prefix_reuse.Trace.inside`.
        """
        if layer != self._layer:
            self._own = self._instead = {}
            self._own, self._layer = self.trace.inside(layer), layer
            if self._other is not None:
                self._instead = self._other.inside(layer)
            else:
                zero = self._counterfactuals.how == "zero"
                self._instead = _zeros(self._own) if zero else self._counterfactuals.means
        return self._own

    def of(self, part: Component) -> Stream:
        """The change that a replacement makes to the stream: counterfactual − own, ``[row, pos,
        d_model]``.

        Of a ``position``: in the stream that enters its layer, and nothing at other positions.
        """
        own, instead, model = self.inside(part.layer), self._instead, self.trace.model
        at = f"blocks.{part.layer}."
        if part.kind == "position":
            name, here = at + "hook_resid_pre", part.position
            change = torch.zeros_like(own[name])
            change[:, here] = instead[name][:, here] - own[name][:, here]
            return change
        ffn = at + "hook_mlp_out"
        if part.kind == "ffn" or (part.kind == "layer" and self._replaces(part) and ffn in own):
            return instead[ffn] - own[ffn]
        name, heads = head_hook(model, part.layer), _heads_of(part)
        change = _to_stream(model, name, instead[name][:, :, heads] - own[name][:, :, heads], heads)
        return change + instead[ffn] - own[ffn] if part.kind == "layer" and ffn in own else change

    def stream(self, part: Component) -> Stream:
        """The stream right after the component's place, with its counterfactual in place.

        Where a block replaces its input, nothing is left of a part that wrote all there is: sums
        are made anew, as a difference would leave rounding for norms to blow up.
        """
        own, instead, model = self.inside(part.layer), self._instead, self.trace.model
        at = f"blocks.{part.layer}.hook_"
        if part.kind == "position" or not self._replaces(part):
            place = {"position": "resid_pre", "head": "resid_mid"}.get(part.kind, "resid_post")
            return own[at + place] + self.of(part)
        if part.kind != "head" and at + "mlp_out" in own:
            return instead[at + "mlp_out"].expand_as(own[at + "mlp_out"])
        name, heads = head_hook(model, part.layer), _heads_of(part)
        values = own[name].clone()
        values[:, :, heads] = instead[name][:, :, heads]
        return _to_stream(model, name, values, slice(None)) + model.blocks[part.layer].attn.b_O

    def _replaces(self, part: Component) -> bool:
        return not getattr(self.trace.model.blocks[part.layer], "residual", True)


def _heads_of(part: Component) -> slice:
    return slice(part.head, part.head + 1) if part.kind == "head" else slice(None)


def _to_stream(model: Any, name: str, change: Tensor, heads: slice) -> Stream:
    """Heads' values at their hook ``[row, pos, head, …]`` → their sum in the stream."""
    if name.endswith("hook_result"):
        return change.sum(2)
    layer = int(name.split(".")[1])
    w_o = model.blocks[layer].attn.W_O.detach()[heads]
    return torch.einsum("rphd,hdm->rpm", change, w_o)


def write_hooks(model: HookedModel, part: Component) -> list[str]:
    """The hooks at which the component's writes, or the stream at a position, can be read."""
    at = f"blocks.{part.layer}."
    if part.kind == "position":
        return [at + "hook_resid_pre"]
    heads = [head_hook(model, part.layer)] if part.kind in ("head", "layer") else []
    ffn = part.kind != "head" and has_ffn(model, part.layer)
    return [*heads, *([at + "hook_mlp_out"] if ffn else [])]


def need_rows(
    problems: Problems,
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component],
    how: str,
    reference: Tensor | None,
    tokens: int,
) -> None:
    """Record every problem of the arguments that say what is replaced and by what."""
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


Run = Callable[[Counterfactuals], Iterator[tuple[Component, Tensor]]]


def joined(
    counterfactuals: Counterfactuals, run: Run, tokens: int
) -> Iterator[tuple[Component, Tensor]]:
    """Each component and its output on all rows, from runs over a few rows, in step.

    Args:
        counterfactuals: The replacement values of all rows.
        run: Gives the same components in the same order for any rows.
        tokens: As for :meth:`Counterfactuals.by_rows`.
    """
    runs = [(rows, run(some)) for rows, some in counterfactuals.by_rows(tokens)]
    (_, first), *others = runs
    if not others:
        yield from first
        return
    count = len(counterfactuals.inputs)
    for part, piece in first:
        output = piece.new_empty((count, *piece.shape[1:]))
        output[: len(piece)] = piece
        del piece
        for rows, other in others:
            output[rows] = next(other)[1]
        yield part, output


def mean_values(
    model: HookedModel, source: Tensor, hooks: Sequence[str], tokens: int
) -> dict[str, Tensor]:
    """Hook → mean over rows ``[1, pos, …]``, as running sums over passes of ``tokens`` positions.

    Raises:
        ArgumentError: for means that are not finite.
    """
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}

    def add(value: Tensor, hook: Any, name: str) -> None:
        wide = torch.promote_types(value.dtype, torch.float32)
        sums[name] = sums.get(name, 0) + value.sum(0, keepdim=True, dtype=wide)
        dtypes[name] = value.dtype

    edits = [(name, partial(add, name=name)) for name in hooks]
    for rows in _slices(source, tokens):
        with evaluating(model):
            model.run_with_hooks(source[rows], fwd_hooks=edits)
    means = {name: (value / len(source)).to(dtypes[name]) for name, value in sums.items()}
    if not all(bool(value.isfinite().all()) for value in means.values()):
        raise not_finite(model, source)
    return means


def _zeros(values: Values) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value[:1]) for name, value in values.items()}


def _other_rows(rows: int, seed: int) -> Tensor:
    """A different row for each row, along a random cycle through all of them."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return order.roll(1)[order.argsort()]


def _slices(inputs: Tensor, tokens: int) -> list[slice]:
    """Even pieces of the rows, of at most ``tokens`` positions each (one row at least)."""
    rows, most = len(inputs), max(1, tokens // inputs.shape[1])
    count = -(-rows // most)
    ends = [rows * piece // count for piece in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
