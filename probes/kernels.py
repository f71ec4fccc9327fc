"""Which lag do the heads of a layer select *together*, for a given memory?

A linear probe gives the residual direction w that holds x_{t−T} after the layer. Along w each head
has a signed kernel over lags (:func:`interp.heads.patterns.kernel_by_lag`); their sum is what the
layer puts there. ``kernel_concentration`` is the share of the summed kernel at lag T,
``kernel_share`` a head's share of the absolute weight Σ_h Σ_s |kernel_h(s)|, ``kernel_part`` its
own kernel at lag T relative to the sum there. The heads with enough of both are the memory's
*group*; a head that only cancels what another one leaks at other lags has a share and no part. One
head that attends to T alone is a group of one; the T + 1 heads of the construction (`memory` §1.4)
select T only as a group.

The null is the same measurement, probe included, on re-initialised models of the same shapes. A
concentrated kernel shows what the layer writes along w; whether later layers read it is for
ablation to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.heads.nulls import DRAWS, from_draws
from interp.heads.patterns import (
    concentration,
    kernel_by_lag,
    kernel_by_regression,
    mass_by_lag,
)
from interp.heads.table import head_table, score_row
from interp.models.init import initialize
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from probes.activations import sampled_positions
from probes.linear import direction

__all__ = ["KernelNull", "LayerKernels", "kernel_null", "kernel_table", "layer_kernels"]

_NULL_ROWS = 48

KernelNull = Mapping[tuple[str, str], Float[np.ndarray, "draw"]]
"""(metric, memory) → scores of re-initialised models."""


@dataclass(frozen=True)
class LayerKernels:
    """One layer's attention by lag.

    Attributes:
        layer: Counted from 0.
        mass: ``[head, lag]`` mean share of attention.
        kernels: Memory → ``[head, lag]`` signed kernels along the direction that holds it.
    """

    layer: int
    mass: Float[np.ndarray, "head lag"]
    kernels: Mapping[str, Float[np.ndarray, "head lag"]]

    def concentration(self, memory: str, lag: int) -> float:
        """Share of the heads' summed kernel at a lag."""
        return concentration(self.kernels[memory].sum(0), lag)

    def shares(self, memory: str) -> Float[np.ndarray, "head"]:
        """Each head's part of the absolute weight of the kernels."""
        weight = np.abs(self.kernels[memory]).sum(1)
        return weight / (weight.sum() or 1.0)

    def parts(self, memory: str, lag: int) -> Float[np.ndarray, "head"]:
        """Each head's own kernel at the lag, relative to the sum there: 0 for one that only
        cancels what another leaks at other lags."""
        at_lag = self.kernels[memory][:, lag]
        return np.abs(at_lag) / (abs(at_lag.sum()) or 1.0)

    def group(self, memory: str, lag: int, *, share: float, part: float) -> tuple[int, ...]:
        """The heads that make the memory's kernel: enough of its weight, and a part at its lag."""
        enough = (self.shares(memory) >= share) & (self.parts(memory, lag) >= part)
        return tuple(np.flatnonzero(enough).tolist())


@torch.no_grad()
def layer_kernels(
    model: SequenceTransformer, batch: Batch, layer: int, memories: Mapping[str, int]
) -> LayerKernels:
    """Measure one layer.

    Args:
        model: A model whose attention is causal.
        batch: Rows with the memories among their latents; their contents are the first input
            channel.
        layer: Which. Behind the first, kernels are regressions on the contents.
        memories: Latent → its lag.
    """
    at, attn = f"blocks.{layer}.", model.blocks[layer].attn
    hooks = ["attn.hook_pattern", "attn.hook_v", "hook_resid_mid", "ln1.hook_normalized"]
    names = [at + hook for hook in hooks]
    inputs = batch.inputs.to(model.cfg.device)
    _, cache = model.run_with_cache(inputs, names_filter=names, return_cache_object=False)
    pattern, v, resid, x = (cache[name].double().cpu().numpy() for name in names)
    heads, mask = model.spec.heads[layer], batch.mask.numpy()
    w_o = attn.W_O.double().cpu().numpy()
    positions, pattern = sampled_positions(mask), pattern[:, :heads]
    kernels = {}
    for name in memories:
        w = direction(resid[:, positions], batch.latents[name][:, positions].double().numpy())
        values = np.einsum("rkhd,hd->rkh", v, w_o @ w)
        if model.spec.identity_ov:
            values += (x @ w)[..., None] * attn.effective_b.double().cpu().numpy()
        values = values[..., :heads]
        if layer == 0:
            kernels[name] = kernel_by_lag(pattern, values, mask)
        else:  # a key holds more than its own token there
            written = np.einsum("rhqk,rkh->rqh", pattern, values)
            contents = inputs[..., 0].double().cpu().numpy()
            scored = int(mask.any(0).argmax())
            kernels[name] = kernel_by_regression(written, contents, mask, lags=scored + 1)
    return LayerKernels(layer, mass_by_lag(pattern[:, :heads], mask), kernels)


def kernel_table(
    measured: LayerKernels, memories: Mapping[str, int], null: KernelNull
) -> pd.DataFrame:
    """Concentrations, shares, parts and masses of a layer against re-initialised models."""
    return head_table(_rows(measured, memories, null))


def _rows(
    measured: LayerKernels, memories: Mapping[str, int], null: KernelNull
) -> Iterator[dict[str, Any]]:
    layer = measured.layer
    for name, lag in memories.items():
        score = measured.concentration(name, lag)
        yield score_row(
            "kernel_concentration", score, from_draws(score, null["kernel_concentration", name]),
            component="group", layer=layer, group=name, target=name,
        )  # fmt: skip
        shares = measured.shares(name).tolist()
        masses = measured.mass[:, lag].tolist()
        parts = measured.parts(name, lag).tolist()
        by_head = (("kernel_share", shares), ("kernel_part", parts), ("lag_mass", masses))
        for metric, scores in by_head:
            for head, score in enumerate(scores):
                yield score_row(
                    metric, score, from_draws(score, null[metric, name]),
                    component="head", layer=layer, head=head, group=name, target=name,
                )  # fmt: skip


def kernel_null(
    model: SequenceTransformer,
    batch: Batch,
    layer: int,
    memories: Mapping[str, int],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> KernelNull:
    """The same scores on ``draws`` re-initialised models of a model's shapes.

    Each memory has its own null, at its own lag; scores of single heads pool the heads. Fewer rows
    (48) than for a measurement make directions noisier and concentrations a little lower: the floor
    under the score matters more than p.

    Returns:
        (metric, memory) → draws.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    fresh = SequenceTransformer(model.spec)
    for draw in range(draws):
        initialize(fresh, seed + draw)
        kernels = layer_kernels(fresh, batch[:_NULL_ROWS], layer, memories)
        for name, lag in memories.items():
            found["kernel_concentration", name].append(kernels.concentration(name, lag))
            found["kernel_share", name] += kernels.shares(name).tolist()
            found["kernel_part", name] += kernels.parts(name, lag).tolist()
            found["lag_mass", name] += kernels.mass[:, lag].tolist()
    return {key: np.array(values) for key, values in found.items()}
