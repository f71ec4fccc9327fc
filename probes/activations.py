"""The activations that probes read: rows of a store or of a model, at sampled scored positions.

Positions are spread evenly over those that are scored in every row, so that a probe sees early
and late ones alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp.errors import ArgumentError
from interp.heads.reading import read_batches
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
    picked = np.linspace(0, len(scored) - 1, min(count, len(scored))).round().astype(int)
    return scored[picked]


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
        positions: ``[sample]``.
    """

    inputs: np.ndarray
    features: Mapping[str, Features]
    latents: Mapping[str, Latent]
    positions: Int[np.ndarray, "sample"]


def collect(
    source: Any,
    inputs: Any,
    hooks: Sequence[str],
    *,
    positions: Int[np.ndarray, "sample"] | None = None,
    batch: int = 64,
) -> Samples:
    """Run a model, or read a store, and keep only the sampled positions.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: For a model: a :class:`~interp.tasks.base.Batch` or inputs. None for a store.
        hooks: Names of hooks with a position axis.
        positions: Which; :func:`sampled_positions` of the first batch's mask by default.
        batch: Rows at a time.
    """
    kept: dict[str, list[np.ndarray]] = {}
    for rows in read_batches(source, inputs, hooks, batch=batch):
        if positions is None:
            positions = sampled_positions(rows.mask.numpy())
        named = {f"a/{hook}": value for hook, value in rows.activations.items()}
        named |= {f"l/{name}": value for name, value in rows.latents.items() if value.ndim > 1}
        for name, value in {"inputs": rows.inputs, **named}.items():
            kept.setdefault(name, []).append(value[:, positions].numpy())
    joined = {name: np.concatenate(pieces) for name, pieces in kept.items()}
    features = {hook: joined[f"a/{hook}"].astype(np.float64) for hook in hooks}
    flat = {hook: value.reshape(*value.shape[:2], -1) for hook, value in features.items()}
    latents = {n.removeprefix("l/"): v for n, v in joined.items() if n.startswith("l/")}
    return Samples(joined["inputs"], flat, _scalars(latents), np.asarray(positions))


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
