"""Which lag do the heads of a layer select *together*, for a given memory?

A linear probe gives the residual direction w that holds x_{t−T} after the layer. Along w each head
has a signed kernel over lags (:func:`interp.attention.patterns.kernel_by_offset`); their sum is
what the layer puts there. One head that attends to T alone has it all; the T + 1 heads of the
construction (`memory` §1.4) select T only together.

A concentrated kernel shows what the layer writes along w; whether the model needs it, and which
heads, is for the role ``memory-location`` to say (:mod:`probes.roles.detectors.memories`).

A nested memory, layer by layer (:func:`nesting_panel`): which latent is readable where, and what
each layer fetches.

    decodability   held-out r² of a ridge probe, at the embedding and after every sublayer
    kernels        Σ_h pattern_h[t, s] · (e_x W_V,h W_O,h w_i), averaged over positions by s − t_i

e_x is the value channel's embedding and w_i the probe's direction of memory i after the layer's
attention. For a construction this is the signed sum of its heads; for a trained model with a
softmax it is its attention, weighted by what the heads write along w_i. Values that a later layer
reads from elsewhere than the embedding's direction are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from interp.attention.by_lag import LagMass
from interp.attention.patterns import concentration, kernel_by_offset
from interp.errors import Problems
from interp.hooks.capture import model_device
from interp.hooks.site import Site
from interp.models.transformer import SequenceTransformer
from interp.store.attention_mask import attention_mask_of
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory
from probes.activations import sampled_positions
from probes.linear import decode, direction

if TYPE_CHECKING:
    from interp.figures.maps import RoundsPanel

_OFFSETS = range(-3, 4)


@dataclass(frozen=True)
class LayerKernels:
    """What the heads of one layer write along each memory's direction, by lag.

    Attributes:
        layer: The layer, counted from 0.
        mass: The mean share of attention at each lag, ``[head, lag]``.
        kernels: Memory → the signed kernels along the direction that holds it, ``[head, lag]``.
    """

    layer: int
    mass: Float[np.ndarray, "head lag"]
    kernels: Mapping[str, Float[np.ndarray, "head lag"]]

    def concentration(self, memory: str, lag: int) -> float:
        """The share of the heads' summed kernel that lies at a lag."""
        return concentration(self.kernels[memory].sum(0), lag)


@torch.no_grad()
def layer_kernels(model: Any, rows: Batch, layer: int, memories: Mapping[str, int]) -> LayerKernels:
    """The kernels over lags of one layer's heads, for each memory at a fixed lag.

    Args:
        model: One of our transformers, whose attention is causal.
        rows: Rows with the memories among their latents. All are run at once.
        layer: The layer. In a layer behind the first a key holds more than its own token: there a
            head's lag is not the memory's.
        memories: Latent → its lag.

    Raises:
        ArgumentError: for arguments that do not fit, or a latent that is not there.
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
    )
    inside = {name: value.double().cpu() for name, value in cache.items()}
    pattern = inside[Site(layer, "pattern").name][:, :heads]
    stream = inside[Site(layer, "resid_mid").name].numpy()
    places, n = sampled_positions(scored), scored.shape[1]
    kernels = {}
    for name in memories:
        latent = rows.latents[name].double().cpu().numpy()
        w = direction(stream[:, places], latent[:, places])
        values = written_along(model, layer, inside, w, range(heads))
        found = kernel_by_offset(pattern.numpy(), values, scored, np.zeros(scored.shape))
        kernels[name] = found[:, n - 1 :]
    mass = LagMass(range(n), resamples=0, attention_mask=mask)
    mass.add({layer: pattern}, rows.mask.cpu())
    return LayerKernels(layer, mass.by_lag(layer), kernels)


def written_along(
    model: Any,
    layer: int,
    inside: Mapping[str, torch.Tensor],
    w: Float[np.ndarray, " d_model"],
    heads: Any,
) -> Float[np.ndarray, "row key head"]:
    """What each of some heads of a layer would write along w if it attended to each key alone.

    Args:
        model: A transformer with ``W_O``.
        layer: The layer.
        inside: Hook → its activations; ``attn.hook_v``, and ``ln1.hook_normalized`` where heads
            write a multiple of what enters.
        w: A direction of the residual stream.
        heads: The heads.
    """
    attn, chosen = model.blocks[layer].attn, list(heads)
    v = inside[Site(layer, "v").name][:, :, chosen].double().numpy()
    w_o = attn.W_O.detach().double().cpu().numpy()[chosen]
    found: Float[np.ndarray, "row key head"] = np.einsum("rkhd,hd->rkh", v, w_o @ w)
    if writes_identity(model):
        x = inside[normalized(layer).name].double().numpy()
        found += (x @ w)[..., None] * attn.effective_b.detach().double().cpu().numpy()[chosen]
    return found


def normalized(layer: int) -> Site:
    """What enters the attention of a layer, after its norm."""
    return Site(layer, "ln1.hook_normalized")


def writes_identity(model: Any) -> bool:
    """Whether heads write a multiple of what enters the attention beside z W_O."""
    return bool(getattr(getattr(model, "spec", None), "identity_ov", False))


@torch.no_grad()
def nesting_panel(
    model: SequenceTransformer, task: AdaptiveMemory, *, title: str, rows: int = 256, seed: int = 0
) -> RoundsPanel:
    """Measure a model on fresh rows of its task, for one panel of the figure.

    Args:
        model: A model for this task, trained or constructed, with any number of layers.
        task: A task with one or more rounds.
        title: The title of the panel.
        rows: How many rows are measured.
        seed: Seed of the rows.
    """
    from interp.figures.maps import RoundsPanel  # and with it matplotlib

    batch = task.sample(rows, seed=seed)
    layers = range(model.spec.n_layers)
    places = ["hook_embed"]
    for layer in layers:
        places += [Site(layer, "resid_mid").name] * (model.spec.heads[layer] > 0)
        places += [Site(layer, "resid_post").name] * bool(model.spec.ffn_widths[layer])
    names = [
        *places,
        *(Site(layer, "resid_mid").name for layer in layers),
        *(Site(layer, "pattern").name for layer in layers),
    ]
    _, cache = model.run_with_cache(batch.inputs, names_filter=list(dict.fromkeys(names)))
    held = {name: value.double().cpu().numpy() for name, value in cache.items()}
    at = sampled_positions(batch.mask.numpy())
    memories = [f"x[t-t_{i}]" for i in range(1, task.memory_count + 1)]
    latents = [name for i, x in enumerate(memories, start=1) for name in (f"t_{i}", x)] + ["f"]
    truth = {name: batch.latents[name][:, at].double().numpy() for name in latents}
    readable = [[decode(held[place][:, at], truth[x]).score for x in latents] for place in places]
    attending = [layer for layer in layers if model.spec.heads[layer] > 0]
    kernels = np.array(
        [
            [_kernel(model, held, batch, at, layer, i, truth[x]) for layer in attending]
            for i, x in enumerate(memories, start=1)
        ]
    )
    return RoundsPanel(
        title=title,
        places=[_words(place) for place in places],
        latents=latents,
        decodable=np.array(readable),
        memories=memories,
        layers=[f"layer {layer}" for layer in attending],
        offsets=list(_OFFSETS),
        attention=kernels,
    )


def _kernel(
    model: SequenceTransformer,
    held: dict[str, np.ndarray],
    batch: Batch,
    at: Int[np.ndarray, " sample"],
    layer: int,
    memory: int,
    content: Float[np.ndarray, "row sample"],
) -> Float[np.ndarray, " offset"]:
    """The layer's kernel along a memory's direction, over lag minus location, as shares of
    |weight|."""
    attn = model.blocks[layer].attn
    w = torch.from_numpy(direction(held[Site(layer, "resid_mid").name][:, at], content))
    value = model.embed.W_E[0].double().cpu()
    passed = torch.einsum("m,hmd,hdn,n->h", value, attn.W_V.double(), attn.W_O.double(), w)
    pattern = held[Site(layer, "pattern").name][:, :, at]
    kernel = np.einsum("bhqk,h->bqk", pattern, passed.numpy())
    kernel /= np.abs(kernel).sum(-1, keepdims=True).clip(1e-300)
    location = batch.latents[f"t_{memory}"][:, at].long().numpy()
    return np.array([_at_lag(kernel, at, location + offset) for offset in _OFFSETS])


def _at_lag(
    kernel: Float[np.ndarray, "row sample pos"],
    at: Int[np.ndarray, " sample"],
    lag: Int[np.ndarray, "row sample"],
) -> float:
    """The mean over positions of the kernel at each one's lag; lags outside the row count as 0."""
    source = at - lag
    inside = (lag >= 0) & (source >= 0)
    there = source.clip(0, kernel.shape[-1] - 1)[..., None]
    picked = np.take_along_axis(kernel, there, axis=-1)[..., 0]
    return float((picked * inside).mean())


def _words(place: str) -> str:
    if place == "hook_embed":
        return "embedding"
    site = Site.of(place)
    return f"layer {site.layer}, {'attention' if site.kind == 'resid_mid' else 'FFN'}"
