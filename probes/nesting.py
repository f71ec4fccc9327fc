"""A picture of a nested memory: which latent is readable where, and what each layer fetches.

    decodability   held-out r² of a ridge probe, at the embedding and after every sublayer
    kernels        Σ_h pattern_h[t, s] · (e_x W_V,h W_O,h w_i), averaged over positions by s − t_i

e_x is the value channel's embedding and w_i the probe's direction of memory i after the layer's
attention. For a construction this is the signed sum of its heads; for a trained model with a
softmax it is its attention, weighted by what the heads write along w_i. Values that a later layer
reads from elsewhere than the embedding's direction are not counted.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from interp.figures.maps import RoundsPanel
from interp.hooks.site import Site
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory
from probes.activations import sampled_positions
from probes.linear import decode, direction

_OFFSETS = range(-3, 4)


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
