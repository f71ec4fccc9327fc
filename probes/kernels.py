"""Which lag do the heads of a layer select *together*, for a given memory?

A linear probe gives the residual direction w that encodes x_{t−T} after the layer. Along w each
head has a signed kernel over lags (:func:`interp.attention.patterns.kernel_by_offset`); their sum
is what the layer writes along w. One head that attends to T alone has all of it; the T + 1 heads of
the construction (`memory` §1.4) select T only together.

A concentrated kernel shows what the layer writes along w; whether the model needs it, and from
which heads, is tested by the role ``memory-location`` (:mod:`probes.roles.detectors.memories`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from interp.attention.by_lag import LagMass
from interp.attention.patterns import concentration, kernel_by_offset
from interp.errors import Problems
from interp.hooks.capture import model_device
from interp.hooks.site import Site
from interp.store.rows import attention_mask_of
from interp.tasks.base import Batch
from probes.activations import sampled_positions
from probes.linear import direction


@dataclass(frozen=True)
class LayerKernels:
    """What the heads of one layer write along each memory's direction, by lag.

    Attributes:
        layer: The layer, counted from 0.
        mass: The mean share of attention at each lag, ``[head, lag]``.
        kernels: Memory → the signed kernels along the direction that encodes it, ``[head, lag]``.
    """

    layer: int
    mass: Float[np.ndarray, "head lag"]
    kernels: Mapping[str, Float[np.ndarray, "head lag"]]

    def concentration(self, memory: str, lag: int) -> float:
        """Return the share |K(lag)| / Σ_s |K(s)| at one lag, K being the sum of all heads' kernels.

        Args:
            memory: A name in ``kernels``.
            lag: The lag, in positions before the query.
        """
        return concentration(self.kernels[memory].sum(0), lag)


@torch.no_grad()
def layer_kernels(model: Any, rows: Batch, layer: int, memories: Mapping[str, int]) -> LayerKernels:
    """Compute the kernels over lags of one layer's heads, for each memory at a fixed lag.

    Args:
        model: A SequenceTransformer with causal attention.
        rows: Rows with the memories among their latents. All are run at once.
        layer: The layer. After the first layer a key holds more than its own token, so that a
            head's lag is not the memory's.
        memories: Latent → its lag.

    Raises:
        ArgumentError: for arguments that do not fit, or a latent that the rows do not have.
    """
    problems, mask, spec = Problems("layer_kernels"), attention_mask_of(model), model.spec
    causal = mask is not None and mask.causal
    problems.need(causal, "model", "must have causal attention", "causal=False", "lags are past")
    there, last = 0 <= layer < len(spec.heads) and spec.heads[layer] > 0, len(spec.heads) - 1
    problems.need(there, "layer", "must be one that has heads", layer, f"0 to {last}")
    absent = [name for name in memories if name not in rows.latents]
    rule = f"must name latents among {', '.join(rows.latents)}"
    problems.need(not absent, "memories", rule, absent, "see the task's latents")
    problems.raise_if_any()
    heads, scored = spec.heads[layer], rows.mask.cpu().numpy()
    _, cache = model.run_with_cache(
        rows.inputs.to(model_device(model)),
        names_filter=lambda name: Site.of(name).layer == layer,
        return_cache_object=False,
    )
    inside = {name: value.double().cpu() for name, value in cache.items()}
    pattern = inside[Site(layer, "pattern").name][:, :heads]
    stream = inside[Site(layer, "resid_mid").name].numpy()
    places, n = sampled_positions(scored), scored.shape[1]
    kernels = {}
    for name in memories:
        latent = rows.latents[name].double().cpu().numpy()
        w = direction(stream[:, places], latent[:, places])
        values = writes_along(model, layer, inside, w, range(heads))
        found = kernel_by_offset(pattern.numpy(), values, scored, np.zeros(scored.shape))
        kernels[name] = found[:, n - 1 :]
    mass = LagMass(range(n), resamples=0, attention_mask=mask)
    mass.add({layer: pattern}, rows.mask.cpu())
    return LayerKernels(layer, mass.by_lag(layer), kernels)


def writes_along(
    model: Any,
    layer: int,
    inside: Mapping[str, torch.Tensor],
    w: Float[np.ndarray, " d_model"],
    heads: Any,
) -> Float[np.ndarray, "row key head"]:
    """Return what each head of a layer would write along w if it attended to each key alone.

    Args:
        model: A transformer with ``W_O``.
        layer: The layer.
        inside: Hook → its activation; ``attn.hook_v``, and ``ln1.hook_normalized`` if heads also
            write a multiple of their input.
        w: A direction of the residual stream.
        heads: The numbers of the heads.
    """
    attn, chosen = model.blocks[layer].attn, list(heads)
    v = inside[Site(layer, "v").name][:, :, chosen].double().numpy()
    w_o = attn.W_O.detach().double().cpu().numpy()[chosen]
    found: Float[np.ndarray, "row key head"] = np.einsum("rkhd,hd->rkh", v, w_o @ w)
    if writes_identity(model):
        x = inside[norm_site(layer).name].double().numpy()
        found += (x @ w)[..., None] * attn.effective_b.detach().double().cpu().numpy()[chosen]
    return found


def norm_site(layer: int) -> Site:
    """Return the site of a layer's attention input, after its norm."""
    return Site(layer, "ln1.hook_normalized")


def writes_identity(model: Any) -> bool:
    """Return whether heads add a multiple of their attention-weighted input to z W_O.

    This is ``identity_ov`` of the model's spec; False without a spec.
    """
    return bool(getattr(getattr(model, "spec", None), "identity_ov", False))
