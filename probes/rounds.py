"""Which round of a nested task is where, and does one round need the one before?

A nested memory (or a nested count) is a chain of latents: the location g_1 and the content
x_{t−t_1} of round 1, then g_2, x_{t−t_2} …, each a function of the one before (`memory` §1.2).

*Where*: the first sublayer after which a latent is decodable, from a table of
:mod:`probes.survey` over the residual stream.

*Order*: round r − 1 is patched away where it first is decodable, and round r is probed again where
it was. Patching away means: the part of the stream that the latents of round r − 1 predict (their
class means, or a line for real ones) is exchanged for another row's,

    x ← x + φ(c_other) B − φ(c) B,     B = least squares of the stream on φ(c).

A placebo moves each position as far in a random direction. Round r depends on round r − 1 if it is
less decodable after the first and not after the second. A chain in this order is what the proof
does; a model that reads every location and then chooses shows no such order. The patch removes what
is linear in φ(c): a code that only a network reads stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.heads.nulls import bootstrap_interval, from_draws, signs_null
from interp.heads.table import head_table, score_row
from interp.tasks.base import Batch
from probes.activations import sampled_positions
from probes.linear import Latent, decode, kind_of, probe_for

__all__ = ["first_decodable", "round_order"]

_CHAIN_RULE = "must hold two rounds or more, each with latents of the batch"


def first_decodable(
    table: pd.DataFrame, *, floor: float = 0.9, level: float = 0.01
) -> pd.DataFrame:
    """Where each latent first is decodable, hooks in the order of the table.

    Args:
        table: From :func:`probes.survey.probe_table`, over the residual stream's hooks in order.
        floor: Least score.
        level: Largest q.

    Returns:
        Columns ``latent``, ``hook`` (empty if nowhere) and ``score``.
    """
    rows = []
    for name, found in table.groupby("latent", sort=False):
        clear = found[(found["score"] >= floor) & (found["q"] <= level)]
        best = found["score"].max()
        rows.append((name, clear["hook"].iloc[0], clear["score"].iloc[0]) if len(clear)
                    else (name, "", best))  # fmt: skip
    return pd.DataFrame(rows, columns=["latent", "hook", "score"])


@torch.no_grad()
def round_order(
    model: Any,
    batch: Batch,
    chain: Sequence[Sequence[str]],
    places: Mapping[str, str],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """How much less decodable each round is without the one before.

    Args:
        model: A hooked model.
        batch: Rows with the latents.
        chain: The latents of each round, first round first.
        places: Latent → the hook of the residual stream where it is decodable; see
            :func:`first_decodable`. A round is patched at the latest place of its latents.
        seed: Of the exchanged rows, the placebo and the null.

    Returns:
        A head table with ``low`` and ``high``: component ``layer``, metric ``round_dependence``,
        circuit ``patched`` or ``placebo``, group = the round patched away, target = the latent
        probed. The score is the drop of the share of right classes, or of r² by rows.

    Raises:
        ArgumentError: for a chain of one round, or latents that are not there.
    """
    names = [name for latents in chain for name in latents]
    problems = Problems("round_order")
    absent = [name for name in names if name not in batch.latents or not places.get(name)]
    problems.need(
        len(chain) >= 2 and not absent, "chain", _CHAIN_RULE, absent or chain, "name them"
    )
    problems.raise_if_any()
    return head_table(_rows(model, batch, chain, places, seed))


def _rows(
    model: Any,
    batch: Batch,
    chain: Sequence[Sequence[str]],
    places: Mapping[str, str],
    seed: int,
) -> Iterator[dict[str, Any]]:
    positions = sampled_positions(batch.mask.numpy())
    for number, (earlier, later) in enumerate(pairwise(chain), start=1):
        at = max((places[name] for name in earlier), key=_depth)
        sites = sorted({places[name] for name in later}, key=_depth)
        whole = _streams(model, batch, sites, {})
        moved = _exchange(model, batch, at, earlier, seed)
        for circuit, stream in (
            ("patched", moved),
            ("placebo", _placebo(model, batch, at, moved, seed)),
        ):
            without = _streams(model, batch, sites, {at: stream})
            for name in later:
                latent, site = batch.latents[name][:, positions].double().numpy(), places[name]
                drop = _quality(whole[site], latent, positions) - _quality(
                    without[site], latent, positions
                )
                score = float(drop.mean())
                null = from_draws(score, signs_null(drop, seed=seed), normal_tail=True)
                low, high = bootstrap_interval(drop[:, None], seed=seed)
                yield score_row(
                    "round_dependence", score, null, component="layer", layer=_depth(site)[0],
                    circuit=circuit, group=f"round {number}", target=name,
                    interval=(float(low[0]), float(high[0])),
                )  # fmt: skip


def _depth(hook: str) -> tuple[int, int]:
    """Layer and place within it of a hook of the residual stream; the embedding comes first."""
    parts = hook.split(".")
    if parts[0] != "blocks":
        return -1, 0
    return int(parts[1]), ("hook_resid_pre", "hook_resid_mid", "hook_resid_post").index(parts[2])


def _streams(
    model: Any, batch: Batch, sites: Sequence[str], put: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any) -> None:
        kept[hook.name] = value.detach().cpu()

    def replace(value: Tensor, hook: Any) -> Tensor:
        return put[hook.name].to(value)

    hooks = [*((name, replace) for name in put), *((name, keep) for name in sites)]
    model.run_with_hooks(batch.inputs.to(model.cfg.device), fwd_hooks=hooks)
    return kept


def _quality(stream: Tensor, latent: Latent, positions: np.ndarray) -> Float[np.ndarray, "row"]:
    """Share of right classes of each row, or 1 − squared error over variance."""
    features, kind = stream[:, positions].double().numpy(), kind_of(latent)
    predicted = decode(features, latent, probe=probe_for(kind)).predicted
    if kind == "categorical":
        return (predicted == latent).mean(1)
    return 1 - np.square(predicted - latent).mean(1) / (latent.var() or 1.0)


def _exchange(model: Any, batch: Batch, at: str, names: Sequence[str], seed: int) -> Tensor:
    """The stream with what the latents predict of it taken from another row."""
    stream = _streams(model, batch, [at], {})[at].double()
    phi = _design([batch.latents[name].double().numpy() for name in names])
    scored = batch.mask.numpy()
    b, *_ = np.linalg.lstsq(phi[scored], stream.numpy()[scored], rcond=None)
    order = torch.randperm(len(phi), generator=torch.Generator().manual_seed(seed)).numpy()
    others = np.roll(order, 1)[order.argsort()]
    return stream + torch.from_numpy((phi[others] - phi) @ b)


def _design(latents: Sequence[np.ndarray]) -> Float[np.ndarray, "row pos feature"]:
    """A column for each joint class of categorical latents, one for each real one, a constant."""
    shape = latents[0].shape
    flat = [latent.reshape(*shape, -1) for latent in latents]
    channels = np.concatenate(flat, axis=-1)
    kinds = [kind_of(channels[..., i]) for i in range(channels.shape[-1])]
    columns = [np.ones((*shape, 1))]
    classes = [i for i, kind in enumerate(kinds) if kind == "categorical"]
    if classes:
        joint = channels[..., classes].reshape(-1, len(classes))
        _, which = np.unique(joint, axis=0, return_inverse=True)
        columns.append(np.eye(int(which.max()) + 1)[which.reshape(shape)])
    real = [i for i, kind in enumerate(kinds) if kind == "real"]
    columns.append(channels[..., real])
    return np.concatenate(columns, axis=-1)


def _placebo(model: Any, batch: Batch, at: str, moved: Tensor, seed: int) -> Tensor:
    """Each position moved as far as in ``moved``, turned by one random rotation."""
    stream = _streams(model, batch, [at], {})[at].double()
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(stream.shape[-1],) * 2))
    return stream + (moved - stream) @ torch.from_numpy(turn)
