"""Batches of activations from a live model or from a store, in the same form.

A model runs up to the last hook wanted and not further; a store reads the rows' chunks. Either
way one batch is in memory at a time. Heads that only pad a narrower layer are cut off.

Which keys a query may attend to, and how its attention is shared among them:

    share(i, j) = pattern(i, j) / Σ_j pattern(i, j)      over the keys that query i may attend to

Nulls count these keys, so they must be known: from a model's spec, from the spec in a store's
manifest, or, for any other model, from its patterns, where a key that is masked has exactly zero
attention in every row, head and query. Attention on a key that should be masked, and attention that
is not a number, are errors. Not for windows: a key masked because it is far counts as one that
gets nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from interp.errors import ArgumentError, HookError, Problems
from interp.hooks.capture import Capture, model_device, survey
from interp.hooks.site import Site
from interp.store import ActivationStore
from interp.tasks.base import Batch

Pattern = Float[Tensor, "row head query key"]


@dataclass(frozen=True)
class AttentionMask:
    """Which keys a query may attend to.

    Attributes:
        causal: Whether keys after the query's own position are masked.
        mask_self: Whether the query's own position is masked.
    """

    causal: bool = True
    mask_self: bool = False

    def keys(self, length: int) -> Bool[Tensor, "query key"]:
        """True where a query may attend to a key."""
        every = torch.ones(length, length, dtype=torch.bool)
        seen = every.tril() if self.causal else every
        return seen & ~torch.eye(length, dtype=torch.bool) if self.mask_self else seen


def attention_mask_of(source: Any) -> AttentionMask | None:
    """The attention mask that a model's spec or a store's manifest declares, or None if neither
    says whether attention is causal.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
    """
    spec = _spec_of(source)
    if not spec or "causal" not in spec:
        return None
    return AttentionMask(bool(spec["causal"]), bool(spec.get("mask_self", False)))


def _spec_of(source: Any) -> Mapping[str, Any] | None:
    """A model's spec as JSON data, its own or what a store's manifest has of it."""
    if isinstance(source, ActivationStore):
        return (source.manifest["plan"].get("model") or {}).get("spec")
    spec = getattr(source, "spec", None)
    return None if spec is None else spec.to_dict()


def mask_from_patterns(patterns: Iterable[Pattern]) -> AttentionMask:
    """What patterns show: causal if no query attends to a later key in any row, head or layer;
    ``mask_self`` if none but the first attends to itself."""
    causal = mask_self = True
    for pattern in patterns:
        most = pattern.abs().amax((0, 1))
        causal &= not bool(most.triu(1).any())
        mask_self &= len(most) > 1 and not bool(most.diagonal()[1:].any())
    return AttentionMask(causal, mask_self)


def attention_shares(
    layer: int, pattern: Pattern, seen: Bool[Tensor, "query key"], heads: Sequence[int | str]
) -> Float64[Tensor, "row head query key"]:
    """Each query's attention as shares of one; zero where it attends to nothing at all.

    Args:
        layer: The layer, named in error messages.
        pattern: Attention, normalised or not.
        seen: Which keys a query may attend to, ``[query, key]``.
        heads: The names of the heads.

    Raises:
        ArgumentError: if attention is not finite, or lies on keys that cannot be attended to.
    """
    pattern = pattern.double()
    total = pattern.sum(-1, keepdim=True)
    lost = (~total.isfinite()).any(dim=2).any(dim=0)[:, 0]
    away = pattern.abs().amax(0).masked_fill(seen, 0.0).flatten(1).any(1) & ~lost
    problems, name = Problems("attention"), Site(layer, "pattern").name
    for wrong, rule, advice in (
        (lost, "must be finite", "the model's weights or inputs are damaged"),
        (away, "must be zero on the keys that are masked", "say what the model masks"),
    ):
        found = [head for head, bad in zip(heads, wrong.tolist(), strict=True) if bad]
        where = f"layer {layer}, head{'s'[: len(found) > 1]} {', '.join(map(str, found))}"
        problems.need(not found, name, rule, where, advice)
    problems.raise_if_any()
    return torch.where(total > 0, pattern / total.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


@dataclass(frozen=True)
class Rows:
    """Rows of one length with their activations.

    Attributes:
        inputs: The inputs, ``[row, pos]`` tokens or ``[row, pos, channel]`` real values.
        mask: ``[row, pos]``, true where something is scored.
        latents: Name → ``[row, pos, …]``.
        activations: Hook, as it was asked for → tensor on the CPU.
        heads: The heads that a head axis holds; None for all.
        labels: Hook → what its axes are, ``("row", "pos", "d_model")``.
        attention_mask: Which keys a query may attend to; None where the source has no spec.
    """

    inputs: Tensor
    mask: Bool[Tensor, "row pos"]
    latents: Mapping[str, Tensor]
    activations: Mapping[str, Tensor]
    heads: tuple[int, ...] | None = None
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attention_mask: AttentionMask | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.inputs)

    def latent(self, name: str) -> Tensor:
        """The values of a latent; :exc:`ArgumentError` names those that the rows have."""
        if name not in self.latents:
            known = ", ".join(self.latents) or "none"
            raise ArgumentError(f"latent {name!r} is not in the rows: they have {known}")
        return self.latents[name]


def layer_hooks(source: Any, kind: str, layers: Sequence[int] | None = None) -> list[str]:
    """The hook names ``blocks.L.KIND`` of the given layers, or of all layers that have the hook.

    Raises:
        HookError: if no layer has it.
    """
    if layers is not None:
        return [Site(layer, kind).name for layer in layers]
    stored = isinstance(source, ActivationStore)
    known = (*source.hooks, *source.aliases) if stored else source.hook_dict
    layered = ((Site.of(name).layer, name) for name in known)
    names = [name for layer, name in layered if layer >= 0 and Site(layer, kind).name == name]
    if not names and not stored:
        names = [Site(layer, kind).name for layer in range(source.cfg.n_layers)]
    if not names:
        raise HookError(f"{source} has no hook blocks.*.{kind}: store it")
    return sorted(names, key=lambda name: Site.of(name).layer)


def as_batch(inputs: Any) -> Batch:
    """Tensors as a batch in which every position is scored; a batch as it is."""
    if isinstance(inputs, Batch):
        return inputs
    inputs = torch.as_tensor(inputs)
    mask = torch.ones(inputs.shape[:2], dtype=torch.bool)
    return Batch(inputs, inputs, mask)


def read_batches(
    source: Any, inputs: Any, hooks: Sequence[str], *, batch: int = 8
) -> Iterator[Rows]:
    """Yield rows with their activations, batch by batch.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: For a model: tokens, real inputs, or a :class:`~interp.tasks.base.Batch`. None for
            a store, which has its own.
        hooks: The names of the hooks; aliases are allowed.
        batch: How many rows are run at a time.

    Raises:
        ArgumentError: if inputs are missing for a model or given for a store, or the store holds
            some positions only.
        HookError: for a hook that is not there.
    """
    problems = Problems("read_batches")
    problems.need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    stored = isinstance(source, ActivationStore)
    advice = "a store has its own rows" if stored else "say what the model is to run on"
    rule = "must be None for a store" if stored else "must be given for a model"
    given = type(inputs).__name__
    problems.need((inputs is None) == stored, "inputs", rule, given, advice)
    if stored:
        kept = source.manifest["plan"].get("positions", "all")
        problems.need(kept == "all", "store", "must hold all positions", kept, "extract them all")
    problems.raise_if_any()
    return (
        _rows_from_store(source, hooks, batch)
        if stored
        else _live(source, as_batch(inputs), hooks, batch)
    )


def scored_mask(store: ActivationStore, rows: Any = None) -> Bool[np.ndarray, "row pos"]:
    """The mask of scored positions of a store's rows.

    It is true everywhere if some rows of the store were stored without a mask.
    """
    if all("mask" in part.shapes for part in store.parts):
        return store.mask(rows)
    return np.ones(store.inputs(rows).shape[:2], dtype=bool)


def check_finite(rows: Rows) -> None:
    """Raise an error for activations that are infinite or not a number.

    Raises:
        ArgumentError: naming the hooks, and the heads where a hook has some.
    """
    problems = Problems("activations")
    for hook, values in rows.activations.items():
        wrong = ~values.isfinite()
        if not bool(wrong.any()):
            continue
        where, labels = hook, list(rows.labels.get(hook, ()))
        if "head" in labels:
            by_head = wrong.movedim(labels.index("head"), 0).flatten(1).any(1)
            names = range(len(by_head)) if rows.heads is None else rows.heads
            bad = (str(head) for head, lost in zip(names, by_head.tolist(), strict=True) if lost)
            where = f"head {', '.join(bad)}"
        problems.need(False, hook, "must be finite", where, "the weights or inputs are damaged")
    problems.raise_if_any()


def _live(model: Any, rows: Batch, hooks: Sequence[str], batch: int) -> Iterator[Rows]:
    device, widths = model_device(model), _head_counts(model)
    found = survey(model, rows.inputs[:2].to(device), list(hooks))
    names = {hook: found.aliases.get(hook, hook) for hook in hooks}
    axes = {firing.name: firing.labels for firing in found.hooks}
    labels = {hook: axes[name] for hook, name in names.items()}
    seen = attention_mask_of(model)
    capture = Capture(model, found.hooks)
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        with capture.running() as forward:  # whoever asked gets the model back as it was
            caught = forward(some.inputs.to(device))
        values = {
            hook: _cut(hook, _widen_bfloat16(caught[name].detach().cpu()), labels[hook], widths)
            for hook, name in names.items()
        }
        yield Rows(some.inputs, some.mask, some.latents, values, None, labels, seen)


def _widen_bfloat16(values: Tensor) -> Tensor:
    """bfloat16 as float32, exactly, as a store gives it: NumPy has no such type."""
    return values.float() if values.dtype == torch.bfloat16 else values


def _rows_from_store(store: ActivationStore, hooks: Sequence[str], batch: int) -> Iterator[Rows]:
    heads = store.manifest["plan"].get("heads")
    widths = {} if heads else _head_counts(store)
    labels = {hook: store.labels(hook) for hook in hooks}
    seen = attention_mask_of(store)
    for chosen in store.batches(batch):
        inputs = torch.from_numpy(chosen.inputs())
        mask = torch.from_numpy(scored_mask(store, chosen.rows))
        values = {
            hook: _cut(hook, torch.from_numpy(chosen.activation(hook)), labels[hook], widths)
            for hook in hooks
        }
        latents = {n: torch.from_numpy(v) for n, v in store.latents(chosen.rows).items()}
        kept = None if heads is None else tuple(heads)
        yield Rows(inputs, mask, latents, values, kept, labels, seen)


def _head_counts(source: Any) -> dict[int, int]:
    """Layer → number of heads, if the spec says that layers differ."""
    heads = (_spec_of(source) or {}).get("n_heads")
    return dict(enumerate(heads)) if isinstance(heads, list | tuple) else {}


def _cut(hook: str, values: Tensor, labels: Sequence[str], widths: Mapping[int, int]) -> Tensor:
    layer = Site.of(hook).layer
    if layer not in widths or "head" not in labels:
        return values
    return values.narrow(list(labels).index("head"), 0, widths[layer])


def has_targets(store: ActivationStore) -> bool:
    """Whether the source of a store's rows gave targets."""
    return all("targets" in part.shapes for part in store.parts)


def stored_batch(store: ActivationStore) -> Batch:
    """The rows that a store holds; zeros for targets that it has not, scored everywhere if it has
    no mask."""
    inputs = torch.from_numpy(store.inputs())
    known = has_targets(store)
    return Batch(
        inputs=inputs,
        targets=torch.from_numpy(store.targets()) if known else torch.zeros_like(inputs),
        mask=torch.from_numpy(scored_mask(store)),
        latents={name: torch.from_numpy(value) for name, value in store.latents().items()},
    )
