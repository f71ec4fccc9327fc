"""Rotary positions, as a rotation of a head's factors.

Rotary embeddings rotate the query at i by R(i) and the key at j by R(j), so a score depends on the
lag s = i − j alone: q R(s) k with the QK circuit W_Q R(s) W_Kᵀ. R(s) rotates pair f of the first
``width`` head coordinates by the angle s·ω_f; the members of a pair are neighbours (GPT-J) or half
the width apart (Llama, NeoX). At lag 0 the circuit is W_Q W_Kᵀ, which the metrics use unless a lag
is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.errors import CheckpointError


@dataclass(frozen=True)
class Rope:
    """The rotary positions (RoPE) of a model.

    Attributes:
        width: how many leading coordinates of a head are rotated.
        theta: the base of the frequencies ω_f = theta^(−2f/width).
        neighbours: whether pairs are (0, 1), (2, 3), … rather than (0, width/2), (1, …), ….
        scaling: the configuration's scaling entry; ``linear`` and ``llama3`` are understood.
    """

    width: int
    theta: float = 10000.0
    neighbours: bool = False
    scaling: Mapping[str, Any] | None = None

    def frequencies(self) -> Tensor:
        """Return the frequencies ω [width/2] in radians per position, in float64.

        Raises:
            CheckpointError: if the kind of scaling is not known.
        """
        exponents = torch.arange(0, self.width, 2, dtype=torch.float64) / self.width
        omega = self.theta**-exponents
        scaling = self.scaling or {}
        kind = str(scaling.get("rope_type", scaling.get("type", "default")))
        if kind == "default":
            return omega
        if kind == "linear":
            return omega / float(scaling["factor"])
        if kind == "llama3":
            return _llama3(omega, scaling)
        raise CheckpointError(
            f"rotary scaling {kind!r} is not known (default, linear and llama3 are): "
            "inspect lag 0, which no scaling changes"
        )

    def rotate(self, factor: Tensor, lag: int) -> Tensor:
        """Rotate the rows of ``factor`` [..., d_head] so that left · rightᵀ becomes left · R(lag) ·
        rightᵀ.

        Rotate the query factor only: (W_Q R(s)) W_Kᵀ is the circuit at lag s = query − key.
        """
        if lag == 0:
            return factor
        angle = (self.frequencies() * lag).to(factor.dtype)
        cos, sin = angle.cos(), angle.sin()
        turned, rest = factor[..., : self.width], factor[..., self.width :]
        if self.neighbours:
            x, y = turned[..., 0::2], turned[..., 1::2]
            pairs = torch.stack((x * cos - y * sin, x * sin + y * cos), dim=-1).flatten(-2)
        else:
            x, y = turned.chunk(2, dim=-1)
            pairs = torch.cat((x * cos - y * sin, x * sin + y * cos), dim=-1)
        return torch.cat((pairs, rest), dim=-1)


def _llama3(omega: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Return the frequencies as scaled in Llama 3: long wavelengths divided by the factor, short
    ones kept."""
    factor, low, high = (
        float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor")
    )
    turns = float(scaling["original_max_position_embeddings"]) * omega / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return omega * (keep + (1 - keep) / factor)
