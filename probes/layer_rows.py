"""One layer's attention and the residual stream after it, for several passes over the same rows.

Rows come from a model that is run, or from a store of its activations; then the model gives its
weights alone. One batch is in memory at a time, and where there is only one it is kept between
passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import ArgumentError, Problems
from interp.store import ActivationStore
from interp.store.attention_mask import attention_mask_of
from interp.store.plan import weights_sha256
from interp.store.rows import Rows, check_finite, read_batches, scored_mask
from interp.tasks.base import Batch
from probes.activations import sampled_positions

__all__ = ["LayerPart", "LayerRows"]

Scored = Bool[np.ndarray, " pos"]


@dataclass(frozen=True)
class LayerPart:
    """Some rows of one layer's activations.

    Attributes:
        rows: The rows as they were read; patterns are under :attr:`LayerRows.pattern`.
        pattern: The attention pattern.
        v: Values, of each head or of each group of heads that share them.
        stream: The residual stream after the attention.
        x: What enters the attention, where heads write a multiple of it; else None.
        mask: Which positions are scored.
        contents: The first input channel; None for tokens.
    """

    rows: Rows
    pattern: Float[np.ndarray, "row head query key"]
    v: Float[np.ndarray, "row key group d_head"]
    stream: Float[np.ndarray, "row pos d_model"]
    x: Float[np.ndarray, "row pos d_model"] | None
    mask: Bool[np.ndarray, "row pos"]
    contents: Float[np.ndarray, "row pos"] | None

    def latent(self, name: str) -> Float[np.ndarray, "row pos"]:
        """The values of a latent that is one number per position."""
        return _array(self.rows.latent(name))


class LayerRows:
    """Reads what a layer's heads attend to and would write, a few rows at a time.

    Args:
        model: A hooked model with ``W_O``, such as ours or a bridge, whose attention is causal.
        rows: A batch, or a store of this model's activations with ``attn.hook_pattern``,
            ``attn.hook_v`` and ``hook_resid_mid`` of the layer (and ``ln1.hook_normalized`` with
            ``identity_ov``).
        layer: The layer, counted from 0.
        batch: How many rows are run at a time.

    Attributes:
        positions: A few positions that are scored in every row.
        first: The first position that is scored in any row.
        length: Positions of a row.

    Raises:
        ArgumentError: for a model, rows or a layer that do not fit.
    """

    def __init__(
        self, model: Any, rows: Batch | ActivationStore, layer: int, *, batch: int
    ) -> None:
        _check(model, rows, layer, batch)
        self.model, self.layer = model, layer
        spec, w_o = getattr(model, "spec", None), _array(model.W_O[layer])
        self.heads = len(w_o) if spec is None else spec.heads[layer]
        at = f"blocks.{layer}."
        self.pattern, self._v = at + "attn.hook_pattern", at + "attn.hook_v"
        self._stream, self._x = at + "hook_resid_mid", at + "ln1.hook_normalized"
        self._rows, self._batch = rows, batch
        self._w_o = w_o[: self.heads]
        identity = spec is not None and spec.identity_ov
        self._b = _array(model.blocks[layer].attn.effective_b)[: self.heads] if identity else None
        everywhere, anywhere = self._scored()
        self.positions: Int[np.ndarray, " sample"] = sampled_positions(everywhere[None])
        self.first, self.length = int(anywhere.argmax()), len(anywhere)
        self._kept: list[LayerPart] = []

    def __iter__(self) -> Iterator[LayerPart]:
        """Iterate over the rows, batch by batch."""
        if self._kept:
            yield from self._kept
            return
        stored = isinstance(self._rows, ActivationStore)
        source, inputs = (self._rows, None) if stored else (self.model, self._rows)
        count = self._rows.rows if isinstance(self._rows, ActivationStore) else len(self._rows)
        for rows in read_batches(source, inputs, self.hooks, batch=self._batch):
            check_finite(rows)
            part = self._part(rows)
            if count <= self._batch:
                self._kept = [part]
            yield part

    def values(
        self, part: LayerPart, w: Float[np.ndarray, " d_model"]
    ) -> Float[np.ndarray, "row key head"]:
        """What each head would write along w if it attended to each key alone."""
        v = np.repeat(part.v, self.heads // part.v.shape[2], axis=2)  # heads may share values
        found: Float[np.ndarray, "row key head"] = np.einsum("rkhd,hd->rkh", v, self._w_o @ w)
        if part.x is not None and self._b is not None:
            found = found + (part.x @ w)[..., None] * self._b
        return found

    @property
    def hooks(self) -> list[str]:
        """The hooks that are read."""
        return [self.pattern, self._v, self._stream, *([self._x] if self._b is not None else [])]

    def of_model(
        self, activations: Mapping[str, Tensor], w_o: Float[np.ndarray, "head d_head d_model"]
    ) -> LayerRows:
        """The same rows in another model with this spec, which was run already.

        Args:
            activations: Hook → what it gave on a batch of rows, for all :attr:`hooks`.
            w_o: The other model's W_O of the layer. Its identity scalars must be this one's.

        Raises:
            ArgumentError: for activations that are not finite.
        """
        other, batch = copy(self), self._rows
        if not isinstance(batch, Batch):
            raise ArgumentError("rows must be a batch, got a store: give the rows themselves")
        kept = dict(activations)
        kept[self.pattern] = kept[self.pattern][:, : self.heads]
        kept[self._v] = kept[self._v][:, :, : self.heads]
        rows = Rows(batch.inputs, batch.mask, batch.latents, kept)
        check_finite(rows)
        other._w_o = w_o[: self.heads]
        other._kept = [other._part(rows)]
        return other

    def _part(self, rows: Rows) -> LayerPart:
        kept = rows.activations
        return LayerPart(
            rows,
            _array(kept[self.pattern]),
            _array(kept[self._v]),
            _array(kept[self._stream]),
            _array(kept[self._x]) if self._x in kept else None,
            rows.mask.numpy(),
            _array(rows.inputs[..., 0]) if rows.inputs.ndim == 3 else None,
        )

    def _scored(self) -> tuple[Scored, Scored]:
        """The positions that are scored in every row, and those scored in any row."""
        if isinstance(self._rows, Batch):
            mask = self._rows.mask.cpu().numpy()
            return np.logical_and.reduce(mask), np.logical_or.reduce(mask)
        length = next(iter(self._rows.lengths))
        everywhere: Scored = np.ones(length, dtype=bool)
        anywhere: Scored = np.zeros(length, dtype=bool)
        for some in self._rows.batches(self._batch):
            mask = scored_mask(self._rows, some.rows)
            np.logical_and(everywhere, mask.all(0), out=everywhere)
            np.logical_or(anywhere, mask.any(0), out=anywhere)
        return everywhere, anywhere


def _array(values: Tensor) -> np.ndarray:
    found: np.ndarray = values.detach().double().cpu().numpy()
    return found


def _check(model: Any, rows: Batch | ActivationStore, layer: int, batch: int) -> None:
    problems, seen = Problems("layer_kernels"), attention_mask_of(model)
    need = problems.need
    readable = hasattr(model, "W_O")
    need(readable, "model", "must have W_O", type(model).__name__, "give ours, or a bridge")
    causal = seen is None or seen.causal
    need(causal, "model", "must have causal attention", "causal=False", "lags are of the past")
    spec = getattr(model, "spec", None)
    heads = spec.heads if spec is not None else [len(w) for w in model.W_O] if readable else ()
    there = not readable or (0 <= layer < len(heads) and heads[layer] > 0)
    need(there, "layer", "must be one that has heads", layer, f"0 to {len(heads) - 1}")
    need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    if isinstance(rows, ActivationStore):
        plan = rows.manifest["plan"]
        same = (plan.get("model") or {}).get("weights_sha256") == weights_sha256(model)
        need(same, "rows", "must be of this model's activations", str(rows.path), "give its store")
        whole, lengths = plan.get("heads") is None, sorted(rows.lengths)
        need(whole, "rows", "must hold all heads of the layer", plan.get("heads"), "extract them")
        need(len(lengths) == 1, "rows", "must be of one length", lengths, "store them apart")
    else:
        need(len(rows) > 0, "rows", "must not be empty", 0, "give some")
    problems.raise_if_any()
