"""A model run once on some rows, and again from a layer on with something changed there.

    clean pass    once, some rows at a time: outputs, means of what heads and FFNs write, and
                  whatever else is to be looked at on the way
    changed run   from the first layer that is changed, on the stream that entered it in the clean
                  pass (:mod:`interp.interventions.clean_run`); the whole model where it cannot be
                  run from the middle, or where streams are too large to be kept

*Ablation* replaces what a component writes by its mean over rows, at each position. *Knock-out*
takes a head's attention away from some keys and gives it to the other keys it may see, in their
proportions (evenly if there was nothing there): what changes then is due to *where* it attended.

Memory does not grow with rows beyond a fixed size: outputs and streams larger than that are
computed again for each changed run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.interventions.ablation_effects import position_losses
from interp.interventions.clean_run import CleanRun, Edit
from interp.interventions.components import Component, components, hook_of, hooks_of, replaced
from interp.store.attention_mask import AttentionMask, attention_mask_of
from interp.store.rows import Rows
from interp.tasks.base import Batch

__all__ = ["HELD", "Edits", "Runs", "Watcher", "knock_out", "moved", "without_keys"]

_AT_ONCE, HELD = 2**23, 2**26
"""The most output numbers in one pass, and the most numbers that are kept in memory."""

_BLOCK = 32
"""The most rows that watchers see together."""

Keys = Bool[Tensor, "#row query key"]
Edits = Callable[[slice], Sequence[Edit]]
"""A function from some rows to the hooks that change something on them."""

Watcher = Callable[[slice, Rows], None]
"""A function that is called with some rows and their activations."""


class Runs:
    """A model's clean pass over some rows, and runs with something changed.

    Args:
        model: Ours, a bridge or a wrapped module, in evaluation mode.
        batch: Its inputs, their targets and where they are scored.
        hooks: The activations that the watcher is shown.
        watcher: Called with up to 32 rows at a time during the clean pass.
        seen: Which keys a query may attend to; by default as the model's spec says.
        room: The most numbers of streams and outputs that are kept. Where streams are more, every
            changed run is one of the whole model.

    Attributes:
        kept: The number of streams' and outputs' numbers that are kept.

    Raises:
        ArgumentError: for streams or outputs that are not finite.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Any,
        batch: Batch,
        hooks: Sequence[str] = (),
        watcher: Watcher | None = None,
        seen: AttentionMask | None = None,
        room: int = HELD,
    ) -> None:
        self.model, self.batch = model, batch
        self._seen = seen or attention_mask_of(model)
        few = CleanRun.of(model, batch.inputs[:2])
        self._replayed = few.trace is not None
        (rows, length), width = batch.inputs.shape[:2], few.output.shape[-1]
        wanted = max(1, min(_BLOCK, _AT_ONCE // (length * width)))
        self._size = 1 << (wanted.bit_length() - 1)  # a divisor of what watchers see together
        stream = few.trace.before(0).shape[-1] * (model.cfg.n_layers + 1) if few.trace else 0
        streams, outputs = rows * length * stream, rows * length * width
        self.kept = streams if streams <= room else 0
        self._held = outputs <= room - self.kept, self.kept > 0
        self.kept += outputs if self._held[0] else 0
        self._clean: list[CleanRun] = []
        self._losses: list[Tensor] = []
        self._sums: dict[str, Tensor] = {}
        self._written: dict[str, list[Tensor]] = {}
        self._pass(list(hooks), watcher)

    def blocks(self) -> Iterator[slice]:
        """Yield slices of rows, some at a time."""
        for start in range(0, len(self.batch), self._size):
            yield slice(start, min(start + self._size, len(self.batch)))

    @torch.no_grad()
    def output(self, rows: slice) -> Float[Tensor, "row pos output"]:
        """The clean output of the rows of one of the :meth:`blocks`."""
        clean = self._clean[rows.start // self._size]
        if self._held[0]:
            return clean.output.double()
        if clean.trace is not None:
            trace = clean.trace
            return trace.finish(trace.before(trace.n_layers), trace.n_layers).double()
        output: Tensor = self.model(clean.inputs).double()
        return output

    @cached_property
    def losses(self) -> Float[Tensor, "row pos"]:
        """The clean loss at each position: squared error, or nats for token targets."""
        found = self._losses or [
            position_losses(self.output(rows), self.batch[rows].targets) for rows in self.blocks()
        ]
        return torch.cat(found)

    @cached_property
    def expected_losses(self) -> Float[Tensor, "row pos"]:
        """The loss at each position that the model itself expects there: the entropy of its clean
        prediction, in nats."""
        found = []
        for rows in self.blocks():
            logs = self.output(rows).float().cpu().log_softmax(-1)
            found.append(-(logs.exp() * logs).sum(-1).double())
        return torch.cat(found)

    @cached_property
    def row_losses(self) -> Float[Tensor, " row"]:
        """The clean loss of each row, a mean over its scored positions."""
        scored = self.batch.mask
        return (self.losses * scored).sum(1) / scored.sum(1).clamp_min(1)

    @cached_property
    def accuracy(self) -> float:
        """The share of scored positions at which the right token has the largest logit."""
        right = 0
        for rows in self.blocks():
            some = self.batch[rows]
            told = self.output(rows)[some.mask].argmax(-1)
            right += int((told == some.targets[some.mask]).sum())
        return right / max(int(self.batch.mask.sum()), 1)

    def changed(
        self, edits: Edits, keep: Sequence[str] = ()
    ) -> Iterator[tuple[slice, Tensor, dict[str, Tensor]]]:
        """Yield some rows at a time, with the changed output and the activations that are kept.

        Args:
            edits: What is changed, as a function of the rows.
            keep: The hooks whose activations are wanted.
        """
        for rows in self.blocks():
            clean = self._clean[rows.start // self._size]
            yield rows, *clean.edited(edits(rows), keep)

    @torch.no_grad()
    def ended(self, by: Float[Tensor, "row pos feature"]) -> Iterator[tuple[slice, Tensor]]:
        """Yield some rows at a time, with the output when the stream after the last layer is moved
        by that much; no layer is run again where streams are kept."""
        last = self.model.cfg.n_layers
        hook = f"blocks.{last - 1}.hook_resid_post"
        for rows in self.blocks():
            clean, some = self._clean[rows.start // self._size], by[rows]
            if clean.trace is not None:
                stream = clean.trace.before(last)
                yield rows, clean.trace.finish(stream + some.to(stream), last)
            else:
                yield rows, clean.edited([(hook, partial(moved, by=some))])[0]

    @torch.no_grad()
    def entering(self, layer: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield some rows at a time, with the clean stream before a layer, or that after the last
        one for their number; no layer is run again where streams are kept."""
        last = layer == self.model.cfg.n_layers
        hook = f"blocks.{layer - last}.hook_resid_{'post' if last else 'pre'}"
        for rows in self.blocks():
            clean = self._clean[rows.start // self._size]
            if clean.trace is not None:
                yield rows, clean.trace.before(layer)
            else:
                yield rows, clean.edited([], [hook])[1][hook]

    @torch.no_grad()
    def inside(
        self, layer: int, hooks: Sequence[str], edits: Edits = lambda rows: ()
    ) -> dict[str, Tensor]:
        """The activations of one layer's hooks on all rows, computed again: in the clean pass, or
        with edits in that layer."""
        found: dict[str, list[Tensor]] = {name: [] for name in hooks}
        for rows, clean in zip(self.blocks(), self._clean, strict=True):
            kept: dict[str, Tensor] = {}
            with self.model.hooks(fwd_hooks=[*edits(rows), *_keeping(hooks, kept)]):
                if clean.trace is None:
                    self.model(clean.inputs)
                else:
                    clean.trace.block(clean.trace.before(layer), layer)
            for name in hooks:
                found[name].append(kept[name])
        return {name: torch.cat(pieces) for name, pieces in found.items()}

    def written(self, layer: int, hook: str) -> Tensor:
        """What components of a layer write on all rows, in the clean pass."""
        if hook in self._written:
            return torch.cat(self._written[hook])
        return self.inside(layer, (hook,))[hook]

    def without(self, parts: Sequence[Component]) -> Edits:
        """The edits that replace several components by their means, together.

        Raises:
            HookError: for a component that has no hook.
        """
        hooks_of(self.model, parts)
        means = {hook: total / len(self.batch) for hook, total in self._sums.items()}
        edits = [
            (hook, partial(_ablated, part=part, mean=means[hook]))
            for hook, part in ((hook_of(self.model, part), part) for part in parts)
        ]
        return lambda rows: edits

    def _pass(self, hooks: list[str], watcher: Watcher | None) -> None:
        model, batch, start = self.model, self.batch, 0
        written = {hook_of(model, part) for part in components(model)} & {*model.hook_dict}
        pending: list[Mapping[str, Tensor]] = []
        for rows in self.blocks():
            kept: dict[str, Tensor] = {}
            with model.hooks(fwd_hooks=_keeping(sorted({*written, *hooks}), kept)):
                clean = CleanRun.of(model, batch.inputs[rows], replay=self._replayed)
            for hook in written:
                total = kept[hook].sum(0, dtype=torch.float64)
                self._sums[hook] = self._sums[hook] + total if hook in self._sums else total
                if kept[hook][0].numel() * len(batch) * len(written) <= HELD // 4:
                    self._written.setdefault(hook, []).append(kept[hook])
            self._clean.append(self._kept(clean))
            if not self._held[0]:  # where they must be computed again they are wanted once, here
                output = clean.output.double()
                self._losses.append(position_losses(output, batch[rows].targets))
            pending.append({name: kept[name] for name in hooks})
            if watcher is not None and (rows.stop % _BLOCK == 0 or rows.stop == len(batch)):
                some = slice(start, rows.stop)
                watcher(some, _rows_of(model, batch[some], pending, self._seen))
                pending, start = [], rows.stop

    def _kept(self, clean: CleanRun) -> CleanRun:
        """A clean run without what is too large to be kept in memory."""
        outputs, streams = self._held
        output = clean.output if outputs else clean.output[:0].clone()  # a slice keeps all of it
        trace = clean.trace if streams else None
        if trace is not None:
            trace = replace(trace, output=output)
        return CleanRun(clean.model, clean.inputs, output, trace)


def knock_out(layer: int, head: int, keys: Keys, *, causal: bool = True) -> Edits:
    """The edits that take one head's attention away from ``keys``."""

    def edits(rows: slice) -> list[Edit]:
        own = keys if len(keys) == 1 else keys[rows]
        return [(f"blocks.{layer}.attn.hook_pattern", without_keys(head, own, causal=causal))]

    return edits


def without_keys(head: int, keys: Keys, *, causal: bool = True) -> Callable[..., Tensor]:
    """A hook on a pattern that takes one head's attention away from ``keys``.

    Queries that see no other key keep their attention.
    """

    def hook(pattern: Tensor, hook: Any) -> Tensor:
        allowed = torch.ones(pattern.shape[-2:], dtype=torch.bool, device=pattern.device)
        allowed = allowed.tril() if causal else allowed
        rest = allowed & ~keys.to(pattern.device)
        mine = pattern[:, head]
        total = mine.sum(-1, keepdim=True)
        left = torch.where(rest, mine, 0.0)
        share = left.sum(-1, keepdim=True)
        even = rest.to(pattern.dtype) / rest.sum(-1, keepdim=True).clamp_min(1)
        few = share <= 1e-6 * total
        moved = torch.where(few, even * total, left * total / share.where(~few, 1.0))
        result = pattern.clone()
        result[:, head] = torch.where(rest.any(-1, keepdim=True), moved, mine)
        return result

    return hook


def moved(value: Tensor, hook: Any, by: Tensor) -> Tensor:
    """A hook that adds ``by`` to what is there."""
    return value + by.to(value)


def _ablated(value: Tensor, hook: Any, part: Component, mean: Tensor) -> Tensor:
    return replaced(value, hook, part, mean.to(value))


def _keeping(names: Sequence[str], kept: dict[str, Tensor]) -> list[Edit]:
    """Hooks that store the values that they see in ``kept``."""

    def keep(value: Tensor, hook: Any, name: str) -> None:
        kept[name] = value.detach()

    return [(name, partial(keep, name=name)) for name in names]


def _rows_of(
    model: Any, batch: Batch, pieces: Sequence[Mapping[str, Tensor]], seen: AttentionMask | None
) -> Rows:
    """Join the activations of several passes; heads that only pad a narrower layer are cut off."""
    found = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    spec = getattr(model, "spec", None)
    for name, value in found.items():
        if spec is not None and name.endswith("attn.hook_pattern"):
            found[name] = value[:, : spec.heads[int(name.split(".")[1])]]
    return Rows(batch.inputs, batch.mask, batch.latents, found, None, {}, seen)
