"""What is lost without each component: output, and what can be read downstream of it.

    loss_increase       mean squared error without the component, minus with it, as a share of the
                        target's variance
    decodability_drop   decodability of a latent right after the component's sublayer, with it
                        minus without it; the probe is refitted, so what is lost is the information
                        and not the old probe's direction

The null of the first flips the signs of rows' differences, that of the second exchanges a row's
two predictions. A drop shows that the component carries the information at present; another one
might take over after training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.heads.effects import Component, components, mean_outputs, run_without
from interp.heads.nulls import from_draws, signs_null, swaps_null
from interp.heads.table import head_table, score_row
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from probes.activations import sampled_positions
from probes.linear import Decoding, decode

__all__ = ["ablation_table", "site_after"]

_POSITIONS = 8


def site_after(part: Component) -> str:
    """The residual stream right after a component's sublayer."""
    name = "hook_resid_mid" if part.kind == "head" else "hook_resid_post"
    return f"blocks.{part.layer}.{name}"


@torch.no_grad()
def ablation_table(
    model: SequenceTransformer, batch: Batch, latents: Sequence[str], *, seed: int = 0
) -> pd.DataFrame:
    """Mean-ablate every head and FFN of a model on a batch.

    Args:
        model: Which.
        batch: Rows with real-valued targets.
        latents: Those whose decodability is followed.

    Returns:
        A head table with metrics ``loss_increase`` and ``decodability_drop`` (target = latent).
    """
    return head_table(_rows(model, batch, latents, seed))


def _rows(
    model: SequenceTransformer, batch: Batch, latents: Sequence[str], seed: int
) -> Iterator[dict[str, Any]]:
    inputs = batch.inputs
    parts = components(model)
    means = mean_outputs(model, inputs, parts)
    positions = sampled_positions(batch.mask.numpy(), _POSITIONS)
    sites = sorted({site_after(part) for part in parts})
    output, cache = model.run_with_cache(inputs, names_filter=sites, return_cache_object=False)
    truth = {name: batch.latents[name][:, positions].double().numpy() for name in latents}
    whole = {site: _decode(cache[site], positions, truth) for site in sites}
    variance = float(batch.targets[batch.mask].double().var())
    for part in parts:
        site = site_after(part)
        without, kept = run_without(model, inputs, part, means, keep=[site])
        where: dict[str, Any] = {"component": part.kind, "layer": part.layer, "head": part.head}
        lost = (_row_losses(without, batch) - _row_losses(output, batch)) / variance
        null = from_draws(float(lost.mean()), signs_null(lost, seed=seed))
        yield score_row("loss_increase", float(lost.mean()), null, target="output", **where)
        for name, after in _decode(kept[site], positions, truth).items():
            before = whole[site][name]
            drop = before.score - after.score
            draws = swaps_null(before.predicted, after.predicted, truth[name], seed=seed)
            yield score_row(
                "decodability_drop", drop, from_draws(drop, draws), target=name, **where
            )


def _decode(
    resid: torch.Tensor, positions: np.ndarray, truth: dict[str, np.ndarray]
) -> dict[str, Decoding]:
    features = resid[:, positions].double().numpy()
    return {name: decode(features, latent) for name, latent in truth.items()}


def _row_losses(output: torch.Tensor, batch: Batch) -> np.ndarray:
    """Mean squared error of each row over its scored positions."""
    squared = (output.double() - batch.targets.double()).square().mean(-1) * batch.mask
    losses: np.ndarray = (squared.sum(1) / batch.mask.sum(1)).numpy()
    return losses
