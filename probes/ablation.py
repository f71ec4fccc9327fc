"""What is lost when a component is ablated: output loss, and what can be read downstream of it.

    loss_increase       the loss without the component, minus with it
                        (:func:`interp.interventions.ablation_effects.row_losses`)
    decodability_drop   decodability of a latent right after the component's sublayer, with it
                        minus without it; the probe is refitted, so what is lost is what a linear
                        probe can read and not the old probe's direction

The null of the first is that rows' differences have mean 0 or are as large with other rows' targets
(:func:`interp.stats.nulls.need_null`), that of the second exchanges a row's two predictions. A drop
shows that the component carries the information at present; another one might take over after
training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.interventions.ablation_effects import loss_unit
from interp.interventions.components import Component, components
from interp.run import Array, Mean, Run, Site, written_by
from interp.run.metrics import LossOfOthers
from interp.stats.head_table import head_table, score_row
from interp.stats.nulls import need_null, swaps_null
from probes.activations import POSITIONS, sampled_positions
from probes.linear import Decoding, decode

__all__ = ["ablation_table", "site_after"]

_ROUNDING = 1e-6


def site_after(part: Component) -> str:
    """The hook of the residual stream right after a component's sublayer."""
    name = "hook_resid_mid" if part.kind == "head" else "hook_resid_post"
    return f"blocks.{part.layer}.{name}"


def ablation_table(
    run: Run,
    latents: Sequence[str],
    groups: Mapping[str, Sequence[Component]],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean-ablate every head and FFN of a model on a batch, and groups of heads at once.

    Args:
        run: The model on rows with targets.
        latents: The latents whose decodability is followed.
        groups: Name → heads of one layer that act together.
        seed: Of the nulls.

    Returns:
        A head table with metrics ``loss_increase`` and ``decodability_drop`` (target = latent),
        for components ``head``, ``ffn`` and ``group``.
    """
    return head_table(_rows(run, latents, groups, seed), family=("metric",))


def _rows(
    run: Run,
    latents: Sequence[str],
    groups: Mapping[str, Sequence[Component]],
    seed: int,
) -> Iterator[dict[str, Any]]:
    batch, parts = run.batch, components(run.model)
    positions = sampled_positions(batch.mask.numpy(), POSITIONS)
    truth = {name: batch.latents[name][:, positions].double().numpy() for name in latents}
    sites = dict.fromkeys(Site.of(site_after(part)) for part in parts)
    whole = {
        site: _decode(stream[:, positions], truth) for site, stream in run.at([*sites]).items()
    }
    unit, metric = loss_unit(batch), LossOfOthers(Array(batch.targets))
    for where, ablated in _ablations(parts, groups):
        edits = tuple(Mean(written_by(run.model, part.layer, part.head)) for part in ablated)
        site = Site.of(site_after(ablated[0]))
        kept = run.with_(*edits).at([site])[site][:, positions]
        lost = _beyond_rounding(run.by_row(run.rise(edits, metric)).numpy() / unit)
        rise, null = float(np.diagonal(lost).mean()), need_null([lost])
        yield score_row("loss_increase", rise, null, target="output", method="mean", **where)
        for name, without in _decode(kept, truth).items():
            before = whole[site][name]
            drop = float(_beyond_rounding(np.array(before.score - without.score)))
            null = swaps_null(before.predicted, without.predicted, truth[name], seed=seed)
            yield score_row(
                "decodability_drop", drop, null, target=name, site=site.name, method="mean", **where
            )


def _ablations(
    parts: Sequence[Component], groups: Mapping[str, Sequence[Component]]
) -> Iterator[tuple[dict[str, Any], Sequence[Component]]]:
    """Yield the columns that name a table row, with the components that are ablated for it."""
    for part in parts:
        yield {"component": part.kind, "layer": part.layer, "head": part.head}, [part]
    for name, heads in groups.items():
        if heads:
            yield {"component": "group", "layer": heads[0].layer, "group": name}, heads


def _beyond_rounding(scores: np.ndarray) -> np.ndarray:
    """Replace differences that rounding can make by zero: they would look significant otherwise."""
    return np.where(np.abs(scores) > _ROUNDING, scores, 0.0)


def _decode(sampled: torch.Tensor, truth: dict[str, np.ndarray]) -> dict[str, Decoding]:
    features = sampled.double().cpu().numpy()
    return {name: decode(features, latent) for name, latent in truth.items()}
