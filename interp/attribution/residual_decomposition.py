"""The residual stream as a sum of the components' outputs, from a live model or from a store.

    stream = Σ heads z W_O (or their results) + Σ FFNs + embedding + positions + output biases

The decomposition is TransformerLens' (``ActivationCache``). If a norm follows the attention (Gemma
2, OLMo 2, GLM 4), a head's output is z W_O as the norm maps it with its scale held fixed. That the
outputs sum to the stream is checked on every batch that is run, and for a store on two rows that
are run again. A model that adds something else is refused. Everything that is missing is named
before work begins, because a sum without its embedding, or without some heads, is not the stream.

Do not use it for models whose blocks replace the stream (``residual=False``): their stream is no
sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attribution.unembedding import (
    SCALE,
    has_final_norm,
    off_by,
    post_norm,
    post_scale,
    reaching,
    tolerance,
)
from interp.errors import HookError, Problems
from interp.hooks.capture import evaluating, model_device
from interp.hooks.limits import need_within
from interp.hooks.site import Site, head_sites
from interp.interventions.components import components
from interp.store import ActivationStore
from interp.store.rows import as_batch, scored_mask
from interp.tasks.base import Batch

StreamPlace = tuple[int, bool]
"""``(layer, between)``: the residual stream that enters the layer, or, if ``between`` is True, the
one between the layer's attention and its FFN."""

Ids = Int[np.ndarray, " id"]
"""Row numbers, counted in the batch or the store that the rows belong to."""

OUTPUT = "output"
"""Key under which the activation cache of rows that are run holds the model's output."""

_SUMMANDS = ("hook_embed", "hook_pos_embed", "hook_mlp_out", "ln1_post.hook_scale", SCALE)


def residual_decomposition(
    model: Any, source: Any, layer: int | None = None
) -> dict[str, Float[Tensor, "row pos d_model"]]:
    """Return what every component of a model adds to the residual stream that enters a layer.

    Args:
        model: One of our models, or a ``TransformerBridge``.
        source: Inputs, a batch, or a store of the model's activations; rows of one length.
        layer: The layer, counted from 0, whose incoming stream is decomposed; by default the stream
            after the last layer, which the unembedding reads.

    Returns:
        Label → output in float64. Labels are TransformerLens': ``embed``, ``pos_embed``, ``L0H1``
        (a head), ``0_mlp_out`` (an FFN), ``bias`` (output biases of attention). The outputs sum to
        the stream. Rows in which nothing is scored are left out.

    Raises:
        ArgumentError: if rows have several lengths, the model does not have the layer, or outputs
            are not finite.
        HookError: naming what a store or wrapped module lacks; or if the model's stream is not the
            sum of these components.
    """
    rows, last = decomposition_of(model, source), int(model.cfg.n_layers)
    at = last if layer is None else layer
    problems = Problems("residual_decomposition")
    problems.need(0 <= at <= last, "layer", f"must be 0 to {last}", layer, "name a layer")
    rule, advice = "must have rows of one length", "give those of one length at a time"
    problems.need(len(rows.groups) == 1, "source", rule, f"{len(rows.groups)} lengths", advice)
    problems.raise_if_any()
    rows.need([(at, False)], scale=False)
    labels, written = rows.parts(rows.cache(rows.groups[0]), (at, False))
    return dict(zip(labels, written, strict=True))


def decomposition_of(model: Any, source: Any) -> ResidualDecomposition:
    """Return the rows of a batch, of inputs or of a store, prepared for decomposing their
    streams."""
    if isinstance(source, ActivationStore):
        return _Stored(model, source)
    return _Live(model, as_batch(source))


class ResidualDecomposition(ABC):
    """Rows of a model or store, and the components whose outputs sum to their residual streams.

    Attributes:
        model: A hooked model with TransformerLens' weight names.
        groups: For each length, the indices of its rows in which something is scored.
        length: Positions of the longest row.
        real: Whether targets are real numbers rather than tokens.
    """

    model: Any
    groups: Sequence[Ids]
    length: int
    real: bool

    @abstractmethod
    def aims(self, rows: Ids) -> tuple[Tensor, Bool[Tensor, "row pos"]]:
        """Return the targets and mask of rows of one length, without reading any activation."""

    @abstractmethod
    def cache(self, rows: Ids) -> Any:
        """Return a TransformerLens ``ActivationCache`` of rows of one length; if the model is run,
        it also holds the output, as :data:`OUTPUT`."""

    def sample(self) -> Any:
        """Run the model on a store's first two scored rows and return their activations.

        Returns:
            An ``ActivationCache`` as from :meth:`cache`. None if the rows do not come from a store
            (the model is then run on every row anyway), or if no row is scored.
        """
        return None

    @abstractmethod
    def need(self, places: Sequence[StreamPlace], *, scale: bool) -> None:
        """Check that all activations are available that the streams at some places are the sum of.

        Args:
            places: The places in the stream, as (layer, between).
            scale: Whether the final norm's denominator is needed too.

        Raises:
            HookError: naming the activations that are missing.
        """

    def parts(
        self, cache: Any, place: StreamPlace
    ) -> tuple[list[str], Float[Tensor, "part row pos d_model"]]:
        """Split the residual stream at a place into the outputs of the components before it.

        Args:
            cache: The rows' activations, from :meth:`cache`.
            place: The place in the stream, as (layer, between).

        Returns:
            The components' labels as in TransformerLens (``L0H1``, ``0_mlp_out``), and their
            outputs in the same order, in float64 on the CPU, which add up to the stream.

        Raises:
            ArgumentError: naming the components whose outputs are not finite.
            HookError: if the cache holds the stream and the outputs do not add up to it.
        """
        layer, between = place
        stack, labels = cache.get_full_resid_decomposition(
            layer=layer, mlp_input=between, expand_neurons=False, return_labels=True
        )
        heads = {part.name for part in components(self.model) if part.kind == "head"}
        real = [i for i, name in enumerate(labels) if name[0] != "L" or name in heads]
        labels, stack = [labels[i] for i in real], stack[real].detach().double().cpu()
        for written in range(layer + between):
            if post_norm(self.model, written) is not None:
                self._norm_heads(cache, written, labels, stack)
        broken = (~stack.isfinite()).flatten(1).any(1).tolist()
        bad = ", ".join(name for name, wrong in zip(labels, broken, strict=True) if wrong)
        self._need_finite("what is written", bad)
        self._need_sum(cache, place, stack)
        return labels, stack

    def _norm_heads(self, cache: Any, layer: int, labels: list[str], stack: Tensor) -> None:
        """Apply the norm after a layer's attention, in place, to the outputs of its heads and
        output bias."""
        scale = cache[post_scale(layer)].detach().double().cpu()
        for place, name in enumerate(labels):
            if name.startswith(f"L{layer}H"):
                stack[place] = reaching(self.model, layer, stack[place], scale)
        bias = getattr(self.model.blocks[layer].attn, "b_O", None)
        if "bias" in labels and bias is not None:
            raw = bias.detach().double().cpu().expand_as(stack[0])
            stack[labels.index("bias")] += reaching(self.model, layer, raw, scale) - raw

    def _need_sum(self, cache: Any, place: StreamPlace, stack: Tensor) -> None:
        """Refuse components whose outputs do not sum to the stream, if the cache holds the stream.

        Raises:
            HookError: with the relative error of the sum.
        """
        here = [name for name in _stream_hooks(self.model, place) if name in cache.cache_dict]
        if not here:
            return
        true = cache[here[0]].detach().cpu()
        if (off := off_by(stack.sum(0), true)) > tolerance(true.dtype):
            raise HookError(
                f"what heads, FFNs and embeddings of {type(self.model).__name__} write is off by "
                f"{off:.2g} of {here[0]}, of which it must be the sum: this architecture adds "
                "something else to its stream; ablate instead"
            )

    def scale(self, cache: Any) -> Float[Tensor, "row pos 1"]:
        """Return the denominator of the final norm; ones for a model without a final norm."""
        if not has_final_norm(self.model):
            return torch.ones_like(cache["hook_embed"][..., :1], dtype=torch.float64).cpu()
        found: Tensor = cache[SCALE].detach().double().cpu()
        self._need_finite("the norm's scale", "" if bool(found.isfinite().all()) else SCALE)
        return found

    def _need_finite(self, what: str, bad: str) -> None:
        problems = Problems("direct_logit_attribution")
        advice = "the model's weights or inputs are damaged, or too large for its dtype"
        problems.need(not bad, what, "must be finite", f"NaN or infinity in {bad}", advice)
        problems.raise_if_any()


class _Live(ResidualDecomposition):
    def __init__(self, model: Any, rows: Batch) -> None:
        problems = Problems("residual decomposition")
        need_within(problems, model, rows.inputs)
        problems.raise_if_any()
        self.model, self._rows, self._streams = model, rows, set[str]()
        self.groups = [rows.mask.any(1).nonzero()[:, 0].cpu().numpy()]
        self.length, self.real = rows.inputs.shape[1], rows.targets.is_floating_point()

    def need(self, places: Sequence[StreamPlace], *, scale: bool) -> None:
        hooks = _needed_hooks(self.model, places, scale)
        lacking = [either[0] for either in hooks if either[0] not in self.model.hook_dict]
        if lacking:
            raise HookError(f"{type(self.model).__name__} has no hook {', '.join(lacking)}")
        last = (self.model.cfg.n_layers, False)
        for place in {*places, last}:
            self._streams |= {*_stream_hooks(self.model, place)} & {*self.model.hook_dict}

    def aims(self, rows: Ids) -> tuple[Tensor, Bool[Tensor, "row pos"]]:
        return self._rows.targets[rows].cpu(), self._rows.mask[rows].cpu()

    def cache(self, rows: Ids) -> Any:
        heads = {site.every_head.name for site in head_sites(self.model)}
        wanted = {*heads, *(n for n in self.model.hook_dict if _is_summand(n))}
        wanted |= self._streams
        inputs = self._rows.inputs[rows].to(model_device(self.model))
        with evaluating(self.model), torch.no_grad():
            out, cache = self.model.run_with_cache(inputs, names_filter=lambda name: name in wanted)
        cache.cache_dict[OUTPUT] = out
        return cache


class _Stored(ResidualDecomposition):
    def __init__(self, model: Any, store: ActivationStore) -> None:
        self.model, self._store, plan = model, store, store.manifest["plan"]
        kept, positions = plan.get("heads"), plan.get("positions", "all")
        every = kept is None or list(kept) == list(range(model.cfg.n_heads))
        problems = Problems("direct_logit_attribution")
        rule, advice = "must hold all positions", "extract them all"
        problems.need(positions == "all", "store", rule, positions, advice)
        rule = "must hold all heads, whose sum is the stream"
        problems.need(every, "store", rule, kept, advice)
        problems.raise_if_any()
        self._aimed = all("targets" in part.shapes for part in store.parts)
        self.length = max(store.lengths, default=0)
        self.groups = self._scored_rows()
        first = next((group[:1] for group in self.groups), None)
        self.real = first is not None and self.aims(first)[0].is_floating_point()

    def _scored_rows(self) -> list[Ids]:
        found: dict[int, list[Ids]] = {}
        for rows in self._store.batches(1024) if self._store.rows else ():
            mask = scored_mask(self._store, rows.rows)
            found.setdefault(mask.shape[1], []).append(rows.rows[mask.any(1)])
        groups = [np.concatenate(ids) for ids in found.values()]
        return [group for group in groups if len(group)]

    def need(self, places: Sequence[StreamPlace], *, scale: bool) -> None:
        known = {*self._store.hooks, *self._store.aliases}
        needed = _needed_hooks(self.model, places, scale)
        lacking = [" or ".join(either) for either in needed if not known & set(either)]
        if lacking:
            raise HookError(
                f"{self._store.path} lacks {', '.join(lacking)}: extract "
                f"{'it' if len(lacking) == 1 else 'them'} too, or give the rows instead of a store"
            )
        if self.groups:
            again = self._again()
            again.need(places, scale=False)
            cache = again.cache(np.arange(len(again.groups[0])))
            for place in places:
                again.parts(cache, place)

    def sample(self) -> Any:
        if not self.groups:
            return None
        again = self._again()
        again.need((), scale=False)
        return again.cache(np.arange(len(again.groups[0])))

    def _again(self) -> _Live:
        """Prepare the store's first two scored rows to be run again."""
        return _Live(self.model, as_batch(torch.from_numpy(self._store.inputs(self.groups[0][:2]))))

    def aims(self, rows: Ids) -> tuple[Tensor, Bool[Tensor, "row pos"]]:
        found = self._store.targets(rows) if self._aimed else self._store.inputs(rows)
        return torch.from_numpy(found), torch.from_numpy(scored_mask(self._store, rows))

    def cache(self, rows: Ids) -> Any:
        return self._store.cache(rows, self.model)


def _needed_hooks(model: Any, places: Sequence[StreamPlace], scale: bool) -> list[tuple[str, ...]]:
    """Return the hooks whose values sum to the streams; of each tuple one hook is enough."""
    upto = max((layer for layer, _ in places), default=model.cfg.n_layers)
    spec = getattr(model, "spec", None)
    has_positions = "hook_pos_embed" if spec is not None else "pos_embed.hook_out"
    needed: list[tuple[str, ...]] = [("hook_embed",)]
    if has_positions in model.hook_dict:
        needed.append(("hook_pos_embed",))
    kinds = ("result",) if spec is not None and spec.identity_ov else ("z", "result")
    for layer in range(model.cfg.n_layers):  # TransformerLens wants those of every layer
        needed.append(tuple(Site(layer, kind).name for kind in kinds))
    normed = (layer for layer in range(upto) if post_norm(model, layer) is not None)
    needed += [(post_scale(layer),) for layer in normed]
    ffns = [Site(layer, "mlp_out").name for layer in range(upto)]
    needed += [(name,) for name in ffns if name in model.hook_dict]
    return [*needed, (SCALE,)] if scale and has_final_norm(model) else needed


def _stream_hooks(model: Any, place: StreamPlace) -> tuple[str, ...]:
    """Return the hooks at which the stream itself can be read; one of them is enough."""
    layer, between = place
    if between:
        return (Site(layer, "resid_mid").name,)
    if layer == 0:
        return (Site(0, "resid_pre").name,)
    before = Site(layer - 1, "resid_post").name
    return (before,) if layer == model.cfg.n_layers else (before, Site(layer, "resid_pre").name)


def _is_summand(hook: str) -> bool:
    return hook.endswith(_SUMMANDS)
