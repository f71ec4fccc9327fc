"""The parts of a template construction as weights: heads that match, fix, average and copy; ramps.

matching   W_Q W_Kᵀ/√d_head = a·P_sym; W_V reads positions, never symbols
fixed      a query code meets a one-hot position: score c there, 0 elsewhere
averaging  no scores: uniform over the prefix
copying    W_V W_O = b·P_sym
ramp       clip(v, 0, 1) = relu(v) − relu(v − 1), two neurons
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.attention.heads import Attention
from interp.models.ffn import FFN, HiddenLayer

__all__ = ["Ramp", "write_hidden_ramps", "write_pair", "write_ramps", "write_scores"]


@dataclass(frozen=True)
class Ramp:
    """A clipped ramp clip(Σ reads·x + shift, 0, 1), whose value is written with given weights.

    Attributes:
        reads: Coordinate → weight.
        shift: The constant added to the sum.
        writes: Coordinate → weight.
    """

    reads: Mapping[int, float]
    shift: float
    writes: Mapping[int, float]


def write_scores(
    attn: Attention, head: int, queries: slice, keys: slice, strength: float, d_head: int
) -> None:
    """Write scores strength · ⟨x_t[queries], x_j[keys]⟩; a single query coordinate is shared."""
    width = keys.stop - keys.start
    scale = sqrt(strength * sqrt(d_head))
    attn.W_Q[head, queries, :width] = scale * torch.eye(width, dtype=attn.W_Q.dtype)
    attn.W_K[head, keys, :width] = scale * torch.eye(width, dtype=attn.W_K.dtype)


def write_pair(attn: Attention, head: int, reads: slice, writes: slice, gain: float = 1.0) -> None:
    """Write W_V W_O so that it carries ``reads`` to ``writes``, times ``gain``."""
    width = reads.stop - reads.start
    attn.W_V[head, reads, :width] = torch.eye(width, dtype=attn.W_V.dtype)
    attn.W_O[head, :width, writes] = gain * torch.eye(width, dtype=attn.W_O.dtype)


def write_ramps(ffn: FFN, ramps: list[Ramp]) -> None:
    """Write ramps into the FFN's last hidden layer."""
    for i, ramp in enumerate(ramps):
        _write_inputs(ffn.W_in, ffn.b_in, i, ramp)
        for coordinate, weight in ramp.writes.items():
            ffn.W_out[2 * i, coordinate] += weight
            ffn.W_out[2 * i + 1, coordinate] -= weight


def write_hidden_ramps(ffn: FFN, first: list[Ramp], second: list[Ramp]) -> None:
    """Write ramps of ramps: the coordinates that ``second`` reads are indices into ``first``."""
    hidden = cast("HiddenLayer", ffn.hidden[0])
    for i, ramp in enumerate(first):
        _write_inputs(hidden.W, hidden.b, i, ramp)
    spread = []
    for ramp in second:
        pairs = {2 * i: w for i, w in ramp.reads.items()}
        pairs |= {2 * i + 1: -w for i, w in ramp.reads.items()}
        spread.append(Ramp(pairs, ramp.shift, ramp.writes))
    write_ramps(ffn, spread)


def _write_inputs(
    weight: Float[Tensor, "d_in width"], bias: Float[Tensor, " width"], index: int, ramp: Ramp
) -> None:
    for neuron, shift in ((2 * index, 0.0), (2 * index + 1, 1.0)):
        for coordinate, value in ramp.reads.items():
            weight[coordinate, neuron] = value
        bias[neuron] = ramp.shift - shift
