"""Where is each round of a nested task, and does a round need the round before?

A nested memory (or a nested count) is a chain of latents: the location g_1 and the content
x_{t−t_1} of round 1, then g_2, x_{t−t_2} …, each a function of the one before (`memory` §1.2).

*Where*: the first sublayer after which a latent is decodable, from a table of
:mod:`probes.probe_table` over the residual stream.

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
from interp.stats.bootstrap import row_interval
from interp.stats.head_table import head_table, score_row
from interp.stats.nulls import paired_null
from interp.tasks.base import Batch
from probes.activations import scalars
from probes.linear import decode, kind_of, probe_for
from probes.sampling import SampledPositions, is_causal
from probes.sampling import sample_positions as hooks_of

_FEW = 16
_CHAIN_RULE = "must hold two rounds or more, each with latents of the batch"


def first_decodable(
    table: pd.DataFrame, *, floor: float = 0.9, level: float = 0.01
) -> pd.DataFrame:
    """The hook at which each latent first is decodable, with hooks in the table's order.

    Args:
        table: A table from :func:`probes.probe_table.probe_table`, over the residual stream's hooks
            in order.
        floor: The least score that counts.
        level: The largest q that counts.

    Returns:
        Columns ``latent``, ``hook`` (empty if nowhere) and ``score``.
    """
    rows = []
    for name, found in table.groupby("latent", sort=False):
        clear = found[(found["score"] >= floor) & (found["q"] <= level)]
        best = found["score"].max()
        rows.append(
            (name, clear["hook"].iloc[0], clear["score"].iloc[0])
            if len(clear)
            else (name, "", best)
        )
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
    """How much less decodable each round is when the round before is patched away.

    Args:
        model: A hooked model.
        batch: Rows with the latents.
        chain: The latents of each round, first round first, named as in
            :func:`probes.probe_table.probe_table`: ``NAME[i]`` for channel i of one with several.
        places: Latent → the hook of the residual stream where it is decodable; see
            :func:`first_decodable`. A round is patched at the latest place of its latents.
        seed: Seed of the exchanged rows, the placebo and the intervals.

    Returns:
        A head table with ``low`` and ``high``: component ``layer``, metric ``round_dependence``,
        method ``patch`` or ``placebo``, group = the round patched away, target = the latent
        probed. The score is the drop of the share of right classes, or of r² by rows. Rows are
        read at :func:`probes.sampling.places`.

    Raises:
        ArgumentError: for a chain of one round, or latents that are not there.
    """
    latents = scalars({n: v.cpu().numpy() for n, v in batch.latents.items() if v.ndim > 1})
    names = [name for together in chain for name in together]
    problems = Problems("round_order")
    absent = [name for name in names if name not in latents or not places.get(name)]
    advice = f"those of the batch are {', '.join(latents) or 'none'}; each needs a place"
    problems.need(len(chain) >= 2 and not absent, "chain", _CHAIN_RULE, absent or chain, advice)
    problems.raise_if_any()
    rows = _rows(model, batch, latents, chain, places, seed)
    return head_table(rows, family=("metric", "method"))


def _rows(
    model: Any,
    batch: Batch,
    latents: Mapping[str, np.ndarray],
    chain: Sequence[Sequence[str]],
    sites_of: Mapping[str, str],
    seed: int,
) -> Iterator[dict[str, Any]]:
    mask, inputs = batch.mask.cpu().numpy(), batch.inputs.cpu().numpy()
    read = hooks_of(mask, inputs, causal=is_causal(model), seed=seed)
    for number, (earlier, later) in enumerate(pairwise(chain), start=1):
        at = max((sites_of[name] for name in earlier), key=_depth)
        sites = sorted({sites_of[name] for name in later}, key=_depth)
        whole = _streams(model, batch, sites, {})
        moved = _exchange(model, batch, at, [latents[name] for name in earlier], seed)
        for method, stream in (
            ("patch", moved),
            ("placebo", _placebo(model, batch, at, moved, seed)),
        ):
            without = _streams(model, batch, sites, {at: stream})
            for name in later:
                site = sites_of[name]
                drop = _quality(whole[site], latents[name], read) - _quality(
                    without[site], latents[name], read
                )
                yield score_row(
                    "round_dependence",
                    float(drop.mean()),
                    paired_null(drop),
                    component="layer",
                    layer=_depth(site)[0],
                    method=method,
                    group=f"round {number}",
                    target=name,
                    interval=row_interval(drop, seed=seed),
                )


def _depth(hook: str) -> tuple[int, int]:
    """The order of a residual-stream hook: its layer and its place there; the embedding comes
    first."""
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


def _quality(
    stream: Tensor, latent: np.ndarray, read: SampledPositions
) -> Float[np.ndarray, " row"]:
    """Share of right classes of each row, or 1 − squared error over variance. Of a row that holds
    no class that can be learned it is 0."""
    features, truth = read.of(stream).double().numpy(), read.of(latent).astype(np.float64)
    found = decode(features, truth, probe=probe_for(kind_of(latent)), groups=read.groups)
    if found.classes is None:
        return 1 - np.square(found.predicted - truth).mean(1) / (truth.var() or 1.0)
    counted = np.isin(truth, found.classes)
    return ((found.predicted == truth) & counted).sum(1) / np.maximum(counted.sum(1), 1)


def _exchange(
    model: Any, batch: Batch, at: str, latents: Sequence[np.ndarray], seed: int
) -> Tensor:
    """The stream, with the part that the latents predict taken from another row."""
    stream = _streams(model, batch, [at], {})[at].double()
    phi, scored = _design(latents), batch.mask.cpu().numpy()
    b, *_ = np.linalg.lstsq(phi[scored], stream.numpy()[scored], rcond=None)
    order = torch.randperm(len(phi), generator=torch.Generator().manual_seed(seed)).numpy()
    others = np.roll(order, 1)[order.argsort()]
    return stream + torch.from_numpy((phi[others] - phi) @ b)


def _design(latents: Sequence[np.ndarray]) -> Float[np.ndarray, "row pos feature"]:
    """A column for each joint class of latents that are names or have few values, one for each
    other, a constant."""
    shape = latents[0].shape
    classes = [latent for latent in latents if _has_classes(latent)]
    columns = [np.ones((*shape, 1))]
    if classes:
        joint = np.stack(classes, axis=-1).reshape(-1, len(classes))
        _, which = np.unique(joint, axis=0, return_inverse=True)
        columns.append(np.eye(int(which.max()) + 1)[which.reshape(shape)])
    columns += [
        latent[..., None].astype(np.float64) for latent in latents if not _has_classes(latent)
    ]
    return np.concatenate(columns, axis=-1)


def _has_classes(latent: np.ndarray) -> bool:
    return kind_of(latent) == "categorical" or len(np.unique(latent)) <= _FEW


def _placebo(model: Any, batch: Batch, at: str, moved: Tensor, seed: int) -> Tensor:
    """A placebo: each position moved as far as in ``moved``, but rotated by one random rotation."""
    stream = _streams(model, batch, [at], {})[at].double()
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(stream.shape[-1],) * 2))
    return stream + (moved - stream) @ torch.from_numpy(turn)
