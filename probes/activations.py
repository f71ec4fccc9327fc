"""The activations that probes read: rows of a store, at sampled scored positions.

Positions are spread evenly over those that are scored in every row, so that a probe sees early
and late ones alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from interp.errors import ArgumentError
from interp.store import ActivationStore
from probes.linear import Features, Latent

__all__ = ["POSITIONS", "Sampled", "sampled_positions"]

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
