"""The activations that probes read: rows of a store or model at sampled, scored positions.

Which positions these are, and which rows count as the same: see :mod:`probes.sampling`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import HookError, Problems
from interp.store import ActivationStore
from interp.store.rows import Rows, as_batch, read_batches, scored_mask
from probes.linear import Features, Kind, Latent, kind_of
from probes.sampling import (
    POSITIONS,
    SampledPositions,
    groups_of,
    is_causal,
    sample_positions,
    sampled_positions,
)

__all__ = [
    "POSITIONS",
    "SampledPositions",
    "Samples",
    "collect",
    "sample_positions",
    "sampled_positions",
    "scalars",
]


@dataclass(frozen=True)
class Samples:
    """Activations and latents at the sampled positions of each row.

    Attributes:
        inputs: The inputs at the samples: ``[row, sample]`` tokens or ``[row, sample, channel]``.
        features: Hook → ``[row, sample, feature]``; further axes (heads) are joined.
        latents: Name → ``[row, sample]``; latents of several channels give ``NAME[0]`` ….
        kinds: Name → how it is to be read (:func:`probes.linear.kind_of`).
        places: The rows and positions that were sampled, and their groups.
    """

    inputs: np.ndarray
    features: Mapping[str, Features]
    latents: Mapping[str, Latent]
    kinds: Mapping[str, Kind]
    places: SampledPositions

    @property
    def positions(self) -> Int[np.ndarray, "row sample"]:
        """The position of each sample."""
        return self.places.positions

    @property
    def groups(self) -> Int[np.ndarray, " row"]:
        """The group of each row; a group is never divided between folds."""
        return self.places.groups


def collect(
    source: Any,
    inputs: Any,
    hooks: Sequence[str],
    *,
    positions: Int[np.ndarray, "*row sample"] | SampledPositions | None = None,
    batch: int = 64,
    seed: int = 0,
) -> Samples:
    """Run a model, or read a store, and keep only the sampled positions.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: For a model: a :class:`~interp.tasks.base.Batch` or inputs. None for a store.
        hooks: Names of hooks ``[row, pos, …]``.
        positions: Which, ``[sample]`` of every row or ``[row, sample]``, taken as they are, shared
            prefixes too; or the places of other samples; :func:`sample_positions` by default.
        batch: How many rows are run at a time.
        seed: Seed of the sampled positions, where none are given.

    Raises:
        ArgumentError: if nothing is scored, or there are no such positions.
        HookError: for a hook that is not there, or has no position axis right after the rows.
    """
    batches = read_batches(source, inputs, hooks, batch=batch)
    masks, tokens = _rows_of(source, inputs, batch)
    chosen = _chosen(source, masks, tokens, positions, seed)
    kept: dict[str, list[np.ndarray]] = {}
    for rows, (which, at) in zip(batches, _parts(chosen, masks), strict=True):
        _check_axes(rows, hooks)
        named = {f"a/{hook}": value for hook, value in rows.activations.items()}
        named |= {f"l/{name}": value for name, value in rows.latents.items() if value.ndim > 1}
        for name, value in {"inputs": rows.inputs, **named}.items():
            kept.setdefault(name, []).append(_numbers(value)[which[:, None], at])
    joined = {name: np.concatenate(pieces) for name, pieces in kept.items()}
    features = {hook: joined[f"a/{hook}"].astype(np.float64) for hook in hooks}
    flat = {hook: value.reshape(*value.shape[:2], -1) for hook, value in features.items()}
    found = scalars({n.removeprefix("l/"): v for n, v in joined.items() if n.startswith("l/")})
    latents = {name: value.astype(np.float64) for name, value in found.items()}
    kinds = {name: kind_of(value) for name, value in found.items()}
    return Samples(joined["inputs"], flat, latents, kinds, chosen)


def scalars(latents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Latents ``[row, pos, …]`` as one number a position each: ``NAME``, or ``NAME[i]`` for channel
    i of those of several; types are kept."""
    found: dict[str, np.ndarray] = {}
    for name, value in latents.items():
        if value.ndim == 2:
            found[name] = value
            continue
        channels = value.reshape(*value.shape[:2], -1)
        found |= {f"{name}[{i}]": channels[..., i] for i in range(channels.shape[-1])}
    return found


def _numbers(value: Tensor) -> np.ndarray:
    """A tensor as an array; numpy has no bfloat16."""
    numbers: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    return numbers


def _rows_of(source: Any, inputs: Any, batch: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Where positions are scored, ``[row, pos]``, and inputs, batch by batch as they are read."""
    if isinstance(source, ActivationStore):
        parts = list(source.batches(batch))
        return [scored_mask(source, part.rows) for part in parts], [p.inputs() for p in parts]
    given = as_batch(inputs)
    starts = range(batch, len(given), batch)
    mask, tokens = given.mask.cpu().numpy(), given.inputs.cpu().numpy()
    return np.split(mask, starts), np.split(tokens, starts)


def _chosen(
    source: Any,
    masks: Sequence[np.ndarray],
    tokens: Sequence[np.ndarray],
    positions: np.ndarray | SampledPositions | None,
    seed: int,
) -> SampledPositions:
    if isinstance(positions, SampledPositions):
        return positions
    fill = -1.0 if tokens[0].dtype.kind == "i" else float("inf")
    inputs = _padded(tokens, fill)
    if positions is None:
        return sample_positions(_padded(masks, 0.0), inputs, causal=is_causal(source), seed=seed)
    given, shortest = np.asarray(positions), min(mask.shape[1] for mask in masks)
    problems = Problems("collect")
    wrong = given[(given < 0) | (given >= shortest)].tolist()
    rule = f"must be positions of every row, 0 to {shortest - 1}"
    problems.need(not wrong and given.size > 0, "positions", rule, wrong or given, "correct them")
    problems.raise_if_any()
    every = np.broadcast_to(given, (len(inputs), given.shape[-1]))
    return SampledPositions(np.arange(len(inputs)), every, groups_of(inputs, seed=seed))


def _padded(parts: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """Join batches of rows into one array; shorter rows are padded with ``fill``."""
    longest = max(part.shape[1] for part in parts)
    width = [((0, 0), (0, longest - p.shape[1]), *[(0, 0)] * (p.ndim - 2)) for p in parts]
    filled = [np.pad(p, w, constant_values=fill) for p, w in zip(parts, width, strict=True)]
    return np.concatenate(filled)


def _parts(
    chosen: SampledPositions, masks: Sequence[np.ndarray]
) -> Iterator[tuple[Int[np.ndarray, " kept"], Int[np.ndarray, "kept sample"]]]:
    """Yield for each batch the rows that are kept, and the sampled positions of each."""
    start = 0
    for mask in masks:
        here = (chosen.rows >= start) & (chosen.rows < start + len(mask))
        yield chosen.rows[here] - start, chosen.positions[here]
        start += len(mask)


def _check_axes(rows: Rows, hooks: Sequence[str]) -> None:
    wrong = [
        f"{hook} [{', '.join(rows.labels[hook])}]"
        for hook in hooks
        if rows.labels[hook][1:2] != ("pos",)
    ]
    if wrong:
        raise HookError(
            f"probes read hooks of [row, pos, …], got {'; '.join(wrong)}: name the residual "
            "stream, hook_z, hook_mlp_out or the like"
        )
