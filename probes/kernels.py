"""Which lag do the heads of a layer select *together*, for a given memory?

A linear probe gives the residual direction w that holds x_{t−T} after the layer. Along w each head
has a signed kernel over lags (:func:`interp.heads.patterns.kernel_by_lag`); their sum is what the
layer puts there. ``kernel_concentration`` is the share of the summed kernel at lag T,
``kernel_share`` a head's part of the absolute weight Σ_h Σ_s |kernel_h(s)|: the heads with a part
in a concentrated kernel are the memory's *group*. One head that attends to T alone is a group of
one; the T + 1 heads of the construction (`memory` §1.4) select T only as a group.

The null is the same measurement, probe included, on re-initialised models of the same shapes. A
concentrated kernel shows what the layer writes along w; whether later layers read it is for
ablation to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.heads.nulls import DRAWS, from_draws
from interp.heads.patterns import concentration, kernel_by_lag, mass_by_lag
from interp.heads.table import head_table, score_row
from interp.models.init import initialize
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from probes.activations import sampled_positions
from probes.linear import direction

__all__ = ["LayerKernels", "kernel_table", "layer_kernels"]

_NULL_ROWS = 48
_POSITIONS = 8


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


@torch.no_grad()
def layer_kernels(
    model: SequenceTransformer, batch: Batch, layer: int, memories: Mapping[str, int]
) -> LayerKernels:
    """Measure one layer.

    Args:
        model: A model with ``hook_v`` and ``W_O`` in TransformerLens' layout.
        batch: Rows with the memories among their latents.
        layer: Which.
        memories: Latent → its lag.
    """
    at = f"blocks.{layer}."
    hooks = [at + "attn.hook_pattern", at + "attn.hook_v", at + "hook_resid_mid"]
    _, cache = model.run_with_cache(batch.inputs, names_filter=hooks, return_cache_object=False)
    pattern, v, resid = (cache[hook].double().numpy() for hook in hooks)
    heads = model.spec.heads[layer]
    w_o = model.blocks[layer].attn.W_O.double().numpy()
    mask, longest = batch.mask.numpy(), max(memories.values()) + 2
    positions = sampled_positions(mask, _POSITIONS)
    kernels = {}
    for name in memories:
        w = direction(resid[:, positions], batch.latents[name][:, positions].double().numpy())
        values = np.einsum("rkhd,hd->rkh", v, w_o @ w)
        kernels[name] = kernel_by_lag(pattern[:, :heads], values[..., :heads], mask, longest)
    return LayerKernels(layer, mass_by_lag(pattern[:, :heads], mask, longest), kernels)


def kernel_table(
    measured: LayerKernels,
    model: SequenceTransformer,
    batch: Batch,
    memories: Mapping[str, int],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> pd.DataFrame:
    """Concentrations, shares and masses of a layer against re-initialised models.

    Null draws are pooled over memories (and heads, for masses), each at its own lag, until there
    are at least ``draws``.
    """
    null = _null(model, batch[:_NULL_ROWS], measured.layer, memories, seed, draws)
    return head_table(_rows(measured, memories, null))


def _rows(
    measured: LayerKernels, memories: Mapping[str, int], null: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    layer = measured.layer
    for name, lag in memories.items():
        score = measured.concentration(name, lag)
        yield score_row(
            "kernel_concentration", score, from_draws(score, null["kernel_concentration"]),
            component="group", layer=layer, group=name, target=name,
        )  # fmt: skip
        shares = measured.shares(name).tolist()
        masses = measured.mass[:, lag].tolist()
        for metric, scores in (("kernel_share", shares), ("lag_mass", masses)):
            for head, score in enumerate(scores):
                yield score_row(
                    metric, score, from_draws(score, null[metric]),
                    component="head", layer=layer, head=head, group=name, target=name,
                )  # fmt: skip


def _null(
    model: SequenceTransformer,
    batch: Batch,
    layer: int,
    memories: Mapping[str, int],
    seed: int,
    draws: int,
) -> dict[str, Float[np.ndarray, "draw"]]:
    found: dict[str, list[float]] = {"kernel_concentration": [], "kernel_share": [], "lag_mass": []}
    fresh = SequenceTransformer(model.spec)
    count = 0
    while len(found["kernel_concentration"]) < draws:
        initialize(fresh, seed + count)
        count += 1
        kernels = layer_kernels(fresh, batch, layer, memories)
        for name, lag in memories.items():
            found["kernel_concentration"].append(kernels.concentration(name, lag))
            found["kernel_share"] += kernels.shares(name).tolist()
            found["lag_mass"] += kernels.mass[:, lag].tolist()
    return {metric: np.array(values) for metric, values in found.items()}
