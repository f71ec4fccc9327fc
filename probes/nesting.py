"""A picture of a nested memory: which latent is decodable where, and what each layer fetches.

    first     the first hook of the residual stream at which a latent is decodable (r² ≥ .9)
    lost      the r² lost there without one component, the one that costs most (``without``)
    before    the r² lost there without the heads of the layer that fetches the round before

    decodability   held-out r² of a ridge probe, at the embedding and after every sublayer
    kernels        Σ_h pattern_h[t, s] · (e_x W_V,h W_O,h w_i), averaged over positions by s − t_i

e_x is the value channel's embedding and w_i the probe's direction of memory i after the layer's
attention. For a construction this is the signed sum of its heads; for a trained model with a
softmax it is its attention, weighted by what the heads write along w_i. Values that a later layer
reads from other directions than the embedding's are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from interp.errors import ArgumentError
from interp.figures.maps import RoundsPanel
from interp.hooks.capture import model_device
from interp.hooks.site import Site
from interp.interventions.components import Component, components
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Construction
from interp.proofs.memory import construct_adaptive_memory
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory
from probes.activations import sampled_positions
from probes.linear import decode, direction
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of
from probes.roles.profile import TASK
from probes.roles.reader import Reader

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
    inputs = batch.inputs.to(model_device(model))
    _, cache = model.run_with_cache(
        inputs, names_filter=list(dict.fromkeys(names)), return_cache_object=False
    )
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
    """Return a layer's signed kernel along a memory's direction, by lag minus location, as a share
    of its absolute weight."""
    attn = model.blocks[layer].attn
    w = torch.from_numpy(direction(held[Site(layer, "resid_mid").name][:, at], content))
    value = model.embed.W_E[0].double().cpu()
    w_v, w_o = (matrix.detach().double().cpu() for matrix in (attn.W_V, attn.W_O))
    passed = torch.einsum("m,hmd,hdn,n->h", value, w_v, w_o, w)
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
    """Return the mean over positions of the kernel at each position's lag; lags outside the row
    count as 0."""
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


def nested_rounds(
    model: Any, task: AdaptiveMemory, *, rows: int = 128, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Measure a model of a nested task, and the proof's construction beside it.

    If the construction for the model's own task cannot be represented in float64 (large lags), it
    is built for the lags 1, 2, … and values ±1. That rounds become decodable one after another does
    not show their mechanism; what is decodable need not be used.

    Args:
        model: A SequenceTransformer for this task.
        task: A task with two rounds or more.
        rows: The number of rows of either task.
        seed: Seed of the rows.

    Returns:
        ``rounds``, one row per model and latent: ``model``, ``latent``, ``layer`` and ``after``
        (where it is first decodable; −1 and ``nowhere`` if it is not), ``r2``, ``without`` and
        ``lost``, ``before`` (NaN for the first round). ``rounds-readable``: ``model``, ``place``
        and one column per latent. ``rounds-kernels``: ``model``, ``memory``, ``layer`` and one
        column per offset.
    """
    proof, near = _proof(task)
    lags = ", ".join(map(str, near.locations))
    told = "" if near is task else f" (values ±1, lags {lags})"
    both = (("this model", model, task), (f"constructed{told}", proof.model, near))
    tables = [_table(m, t, rows, seed).assign(model=name) for name, m, t in both]
    panels = [nesting_panel(m, t, title=name, rows=rows, seed=seed) for name, m, t in both]
    table = pd.concat(tables, ignore_index=True)
    readable = [
        pd.DataFrame(panel.decodable, columns=list(panel.latents)).assign(
            place=list(panel.places), model=panel.title
        )
        for panel in panels
    ]
    kernels = [
        pd.DataFrame(shares, columns=[f"{offset:+d}" for offset in panel.offsets]).assign(
            layer=list(panel.layers), memory=memory, model=panel.title
        )
        for panel in panels
        for memory, shares in zip(panel.memories, panel.attention, strict=True)
    ]
    return {
        "rounds": table[["model", *table.columns.drop("model")]],
        "rounds-readable": pd.concat(readable, ignore_index=True),
        "rounds-kernels": pd.concat(kernels, ignore_index=True),
    }


def _proof(task: AdaptiveMemory) -> tuple[Construction, AdaptiveMemory]:
    """Return the construction of the task, or of the nearest task that float64 can represent, with
    that task."""
    try:
        return construct_adaptive_memory(task), task
    except ArgumentError:
        locations = tuple(range(1, len(task.locations) + 1))
        near = replace(task, locations=locations, inputs="signs")
        return construct_adaptive_memory(near), near


def _table(model: Any, task: AdaptiveMemory, rows: int, seed: int) -> pd.DataFrame:
    batch = task.sample(rows, seed=seed)
    evidence = evidence_of(model, batch, TASK, latents=True, targets=False, seed=seed)
    reader = Reader(evidence, Effects(evidence))
    chain = [(f"t_{i}", f"x[t-t_{i}]") for i in range(1, task.rounds + 1)]
    names = [*(name for together in chain for name in together), "f"]
    sites = {name: reader.first_site(name) for name in names}
    earlier = {name: f"x[t-t_{i - 1}]" for i, names in enumerate(chain, 1) for name in names}
    heads = {
        name: [
            part
            for part in components(model)
            if part.kind == "head"
            and (site := sites.get(earlier.get(name, "")))
            and part.layer == site[0]
        ]
        for name in names
    }
    return pd.DataFrame([_row(reader, name, sites[name], heads[name]) for name in names])


def _row(
    reader: Reader, name: str, site: tuple[int, str] | None, heads: Sequence[Component]
) -> dict[str, Any]:
    row: dict[str, Any] = {"latent": name, "layer": -1, "after": "nowhere", "r2": float("nan")}
    without, lost, before = "", float("nan"), float("nan")
    if site is None:
        row["r2"] = max(reader.read(hook, name).score for _, hook in reader.sites())
    else:
        layer, hook = site
        after = {"mid": "attention", "ost": "FFN"}.get(hook[-3:], "embedding")
        row |= {"layer": layer, "after": after, "r2": reader.read(hook, name).score}
        parts = [part for part in components(reader.model) if _comes_before(part, layer, after)]
        if parts:
            scores = {
                part.name: reader.drop_without(hook, name, [part], 0.0).score for part in parts
            }
            without = max(scores, key=lambda part: scores[part])
            lost = scores[without]
        if heads and min(part.layer for part in heads) <= layer:
            before = reader.drop_without(hook, name, heads, 0.0).score
    return row | {"without": without, "lost": lost, "before": before}


def _comes_before(part: Component, layer: int, after: str) -> bool:
    return bool(
        part.layer < layer or (part.layer == layer and (part.kind == "head" or after == "FFN"))
    )
