"""The activations that probes read: rows of a store or of a model, at sampled scored positions.

Positions are spread evenly over those that are scored in every row, so that a probe sees early
and late ones alike. Where no position is scored in all rows, each row has its own, spread evenly
over those that are scored there; a row with fewer than the others gives some of them twice, one
with none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp.errors import ArgumentError, HookError
from interp.heads.reading import Rows, as_batch, read_batches, scored_mask
from interp.store import ActivationStore
from probes.linear import Features, Latent

__all__ = ["POSITIONS", "Sampled", "Samples", "collect", "sampled_positions"]

POSITIONS = 8
"""Sampled positions of a row, unless told otherwise."""


def sampled_positions(
    mask: Bool[np.ndarray, "row pos"], count: int = POSITIONS
) -> Int[np.ndarray, "sample"]:
    """At most ``count`` positions, evenly spread over those scored in every row.

    Raises:
        ArgumentError: if no position is scored in every row.
    """
    scored = np.flatnonzero(mask.all(axis=0))
    if not len(scored):
        raise ArgumentError("mask must leave a position scored in every row, got none: shorten it")
    return _spread(scored, min(count, len(scored)))


def _spread(scored: Int[np.ndarray, "scored"], count: int) -> Int[np.ndarray, "sample"]:
    return scored[np.linspace(0, len(scored) - 1, count).round().astype(int)]


@dataclass(frozen=True)
class Sampled:
    """A store seen at a few positions of each row."""

    store: ActivationStore
    positions: Int[np.ndarray, "sample"]

    def features(self, hook: str) -> Features:
        """Activations ``[row, sample, feature]`` as float64."""
        return self.store.activation(hook, positions=self.positions).astype(np.float64)

    def latents(self) -> dict[str, Latent]:
        """Every latent that is one number a position, ``[row, sample]``."""
        found = self.store.latents()
        return {name: value[:, self.positions].astype(np.float64)
                for name, value in found.items() if value.ndim == 2}  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """Activations and latents at the sampled positions of each row.

    Attributes:
        inputs: ``[row, sample]`` tokens or ``[row, sample, channel]``.
        features: Hook → ``[row, sample, feature]``; further axes (heads) are joined.
        latents: Name → ``[row, sample]``; latents of several channels give ``NAME[0]`` ….
        positions: ``[row, sample]``.
    """

    inputs: np.ndarray
    features: Mapping[str, Features]
    latents: Mapping[str, Latent]
    positions: Int[np.ndarray, "row sample"]


def collect(
    source: Any,
    inputs: Any,
    hooks: Sequence[str],
    *,
    positions: Int[np.ndarray, "*row sample"] | None = None,
    batch: int = 64,
) -> Samples:
    """Run a model, or read a store, and keep only the sampled positions.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: For a model: a :class:`~interp.tasks.base.Batch` or inputs. None for a store.
        hooks: Names of hooks ``[row, pos, …]``.
        positions: Which, ``[sample]`` of every row or ``[row, sample]``; 8 of those that are scored
            by default.
        batch: Rows at a time.

    Raises:
        ArgumentError: if nothing is scored.
        HookError: for a hook that is not there, or has no position axis right after the rows.
    """
    batches = read_batches(source, inputs, hooks, batch=batch)
    masks = _masks(source, inputs, batch)
    chosen = _sampled(masks) if positions is None else _given(np.asarray(positions), masks)
    kept: dict[str, list[np.ndarray]] = {}
    for rows, (which, places) in zip(batches, chosen, strict=True):
        _check_axes(rows, hooks)
        named = {f"a/{hook}": value for hook, value in rows.activations.items()}
        named |= {f"l/{name}": value for name, value in rows.latents.items() if value.ndim > 1}
        for name, value in {"inputs": rows.inputs, **named}.items():
            kept.setdefault(name, []).append(value.numpy()[which[:, None], places])
    joined = {name: np.concatenate(pieces) for name, pieces in kept.items()}
    features = {hook: joined[f"a/{hook}"].astype(np.float64) for hook in hooks}
    flat = {hook: value.reshape(*value.shape[:2], -1) for hook, value in features.items()}
    latents = {n.removeprefix("l/"): v for n, v in joined.items() if n.startswith("l/")}
    places = np.concatenate([places for _, places in chosen])
    return Samples(joined["inputs"], flat, _scalars(latents), places)


_Chosen = list[tuple[Int[np.ndarray, "kept"], Int[np.ndarray, "kept sample"]]]
"""Of each batch of rows: which are kept, and the positions of each."""


def _masks(source: Any, inputs: Any, batch: int) -> list[np.ndarray]:
    """Where positions are scored, ``[row, pos]``, batch by batch as they are read."""
    if not isinstance(source, ActivationStore):
        mask = as_batch(inputs).mask.numpy()
        return [mask[start : start + batch] for start in range(0, len(mask), batch)]
    return [scored_mask(source, chosen.rows) for chosen in source.batches(batch)]


def _sampled(masks: Sequence[np.ndarray]) -> _Chosen:
    shortest = min(mask.shape[1] for mask in masks)
    everywhere = np.logical_and.reduce([mask[:, :shortest].all(axis=0) for mask in masks])
    if everywhere.any():
        return _given(sampled_positions(everywhere[None]), masks)
    most = max(int(mask.sum(axis=1).max()) for mask in masks)
    if not most:
        raise ArgumentError("mask must score a position, got none: give rows with targets")
    return [_own(mask, min(POSITIONS, most)) for mask in masks]


def _own(mask: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's own positions; rows without any are left out."""
    which = np.flatnonzero(mask.any(axis=1))
    places = [_spread(np.flatnonzero(mask[row]), count) for row in which]
    return which, np.array(places, dtype=int).reshape(len(which), count)


def _given(positions: np.ndarray, masks: Sequence[np.ndarray]) -> _Chosen:
    sizes = [len(mask) for mask in masks]
    every = np.broadcast_to(positions, (sum(sizes), positions.shape[-1]))
    parts = np.split(every, np.cumsum(sizes)[:-1])
    return [(np.arange(size), part) for size, part in zip(sizes, parts, strict=True)]


def _check_axes(rows: Rows, hooks: Sequence[str]) -> None:
    wrong = [f"{hook} [{', '.join(rows.labels[hook])}]" for hook in hooks
             if rows.labels[hook][1:2] != ("pos",)]  # fmt: skip
    if wrong:
        raise HookError(
            f"probes read hooks of [row, pos, …], got {'; '.join(wrong)}: name the residual "
            "stream, hook_z, hook_mlp_out or the like"
        )


def _scalars(latents: Mapping[str, np.ndarray]) -> dict[str, Latent]:
    found: dict[str, Latent] = {}
    for name, value in latents.items():
        value = value.astype(np.float64)
        if value.ndim == 2:
            found[name] = value
            continue
        channels = value.reshape(*value.shape[:2], -1)
        found |= {f"{name}[{i}]": channels[..., i] for i in range(channels.shape[-1])}
    return found
