"""Substitutions: which symbols stand for the wildcards, and how diverse they are.

Symbols are drawn one after another without replacement with weights w_k, uniform (w_k = 1) or
Zipf (w_k = k^{−s}, rank k from 1). Drawing is by exponential clocks: symbol k rings at E_k / w_k,
and the first to ring are taken, in order.

The diversity ρ of a task (`template` §2.1) is the reciprocal of the largest probability that any
fixed symbol is substituted. With m wildcards and p_k = w_k / Σw that is, for the heaviest symbol,

    1/ρ = P(fewer than m others ring before it) = ∫_0^1 P(#{j: rung by t} < m) du,  u = e^{−p_1 t}

where the others ring independently by t with probability 1 − u^{p_j/p_1}. ρ says nothing about
how well symbols of the tail are learned.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

__all__ = ["Law", "diversity", "draw_symbols", "weights"]

Law = Literal["uniform", "zipf"]


def weights(law: str, symbols: int, exponent: float) -> Float64[np.ndarray, " symbol"]:
    """The probability of each symbol, by rank, under a :data:`Law`; they sum to 1."""
    rank = np.arange(1, symbols + 1, dtype=np.float64)
    weight = rank**-exponent if law == "zipf" else np.ones(symbols)
    return np.asarray(weight / weight.sum())


def draw_symbols(
    weight: Float64[np.ndarray, " symbol"], n: int, wildcards: int, generator: torch.Generator
) -> Int64[Tensor, "row wildcard"]:
    """The symbols that n rows substitute for their wildcards, as ranks from 0, distinct in each
    row."""
    uniform = torch.rand(n, len(weight), generator=generator, dtype=torch.float64)
    clocks = -torch.log1p(-uniform) / torch.from_numpy(weight)
    return clocks.topk(wildcards, dim=1, largest=False, sorted=True).indices


def diversity(weight: Float64[np.ndarray, " symbol"], wildcards: int) -> float:
    """The diversity ρ for templates of at most ``wildcards`` wildcards; infinite without any."""
    if wildcards == 0:
        return float("inf")
    if np.ptp(weight) == 0:
        return len(weight) / wildcards
    from scipy.integrate import quad

    share = weight[1:] / weight[0]
    probability, _ = quad(lambda u: _fewer(1 - u**share, wildcards), 0, 1, limit=200)
    return 1 / float(probability)


def _fewer(rung: Float64[np.ndarray, " symbol"], m: int) -> float:
    """The probability that fewer than m of several independent events happen."""
    count = np.zeros(m)
    count[0] = 1.0
    for p in rung:
        count[1:] = count[1:] * (1 - p) + count[:-1] * p
        count[0] *= 1 - p
    return float(count.sum())
