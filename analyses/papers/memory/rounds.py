"""Does a round of a nested task need the round before?

A nested memory (or a nested count) is a chain of latents: the location g_1 and the content
x_{t−t_1} of round 1, then g_2, x_{t−t_2} …, each a function of the one before (`memory` §1.2).

Round r − 1 is patched away where it first is decodable, and round r is probed again where it was.
Patching away means: the part of the stream that the latents of round r − 1 predict (their class
means, or a line for real ones) is exchanged for another row's,

    x ← x + φ(c_other) B − φ(c) B,     B = least squares of the stream on φ(c).

Round r depends on round r − 1 if it is less decodable then. A chain in this order is what the proof
does; a model that reads every location and then chooses shows no such order. The patch removes what
is linear in φ(c): a code that only a network reads stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from prooflens.probes import decode, kind_of, probe_for, sampled_positions
from prooflens.tasks import Batch

__all__ = ["round_order"]

_FEW = 16


@torch.no_grad()
def round_order(
    model: Any,
    batch: Batch,
    chain: Sequence[str],
    places: Mapping[str, str],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure how much less decodable each round is when the round before is patched away.

    Args:
        model: A hooked model.
        batch: Rows with the latents of ``chain``.
        chain: The latent of each round, first round first.
        places: Latent → the hook of the residual stream where it is decodable.
        seed: Seed of the exchanged rows.

    Returns:
        Columns ``round`` and ``latent`` (what is probed), ``score`` (the drop of the share of right
        classes, or of r² by rows) and ``low``, the lower end of its 95 % interval over rows.
    """
    at = sampled_positions(batch.mask.cpu().numpy())
    latents = {name: batch.latents[name].cpu().numpy() for name in chain}
    found = []
    for number, (earlier, later) in enumerate(pairwise(chain), start=1):
        hook = places[later]
        moved = _exchange(model, batch, places[earlier], latents[earlier], seed)
        whole, without = (
            _quality(_stream(model, batch, hook, put)[:, at], latents[later][:, at])
            for put in ({}, {places[earlier]: moved})
        )
        drop = whole - without
        off = 1.96 * float(drop.std(ddof=1)) / np.sqrt(len(drop))
        found.append((number, later, float(drop.mean()), float(drop.mean()) - off))
    return pd.DataFrame(found, columns=["round", "latent", "score", "low"])


def _stream(model: Any, batch: Batch, wanted: str, put: Mapping[str, Tensor]) -> Tensor:
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any) -> None:
        kept[hook.name] = value.detach().cpu()

    def replace(value: Tensor, hook: Any) -> Tensor:
        return put[hook.name].to(value)

    hooks = [*((name, replace) for name in put), (wanted, keep)]
    model.run_with_hooks(batch.inputs.to(model.cfg.device), fwd_hooks=hooks)
    return kept[wanted]


def _quality(stream: Tensor, latent: np.ndarray) -> Float[np.ndarray, " row"]:
    """Return for each row how well the latent is decoded: the share of right classes, or 1 −
    squared error / variance. It is 0 for a row without a class that can be learned."""
    features, truth = stream.double().numpy(), latent.astype(np.float64)
    found = decode(features, truth, probe=probe_for(kind_of(latent)))
    if found.classes is None:
        return np.asarray(1 - np.square(found.predicted - truth).mean(1) / (truth.var() or 1.0))
    counted = np.isin(truth, found.classes)
    right = ((found.predicted == truth) & counted).sum(1)
    return np.asarray(right / np.maximum(counted.sum(1), 1))


def _exchange(model: Any, batch: Batch, at: str, latent: np.ndarray, seed: int) -> Tensor:
    """Return the residual stream with the part that the latent predicts taken from another row."""
    stream = _stream(model, batch, at, {}).double()
    phi, scored = _design(latent), batch.mask.cpu().numpy()
    b, *_ = np.linalg.lstsq(phi[scored], stream.numpy()[scored], rcond=None)
    order = torch.randperm(len(phi), generator=torch.Generator().manual_seed(seed)).numpy()
    others = np.roll(order, 1)[order.argsort()]
    return stream + torch.from_numpy((phi[others] - phi) @ b)


def _design(latent: np.ndarray) -> Float[np.ndarray, "row pos feature"]:
    """Return the regressors of a latent: a constant, and the latent itself, or a column for each
    class if it is a name or has few values."""
    values = latent[..., None].astype(np.float64)
    if kind_of(latent) == "categorical" or len(np.unique(latent)) <= _FEW:
        kinds, which = np.unique(latent, return_inverse=True)
        values = np.eye(len(kinds))[which.reshape(latent.shape)]
    return np.concatenate([np.ones((*latent.shape, 1)), values], axis=-1)
