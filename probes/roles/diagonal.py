"""How diagonal a token × token circuit is, relative to what its rank allows.

M = left rightᵀ holds what a head makes of each pair of tokens, rows and columns centred. Three
scores, each signed or oriented as the diagonal is (`template` §2.3):

    share      (tr M)² / (‖M‖² (n − 1))       of M's energy, what c·I explains
    allowed    min(rank, n − 1) / (n − 1)     the most that a circuit of that rank can have: its
                                              best is a projector, with trace and energy both rank
    dominance  share of rows whose own entry leads every other one by at least a tenth of its height
    positive   Σ Re λ / Σ |λ| of M's eigenvalues, in [−1, 1]

With n tokens in d Gaussian directions even a·I has only n/(n + d) of what its rank d allows, one
half where they are as many: a floor on the quotient must stay below that. A head of width 16 on 256
tokens can have a share of .06 at most, so share is judged by the quotient
share / allowed. A quotient near 1 alone does not tell equality: a head that matches *classes* of
tokens, or tokens that are near each other on a circle, spends its whole rank on the diagonal too;
its rows have other entries as large, and dominance is 0.

p of the trace is that of relabelled columns, which have mean 0 and variance ‖M‖²/(n − 1) exactly,
and a normal tail; it is not taken below 1/n!. It says that the diagonal is not chance, not that it
is large. In one or two dimensions no head tells many tokens apart, and dominance says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from interp.stats.nulls import permutations_least
from interp.stats.p_values import from_moments

_LEAD = 0.1
_NOTHING = 1e-18


@dataclass(frozen=True)
class Diagonal:
    """Scores of how diagonal a circuit is.

    Attributes:
        share: The share of its energy that c·I explains, with the sign of the diagonal.
        allowed: The largest share of a circuit of that rank.
        dominance: The share of rows in which the diagonal entry leads.
        positive: The positive share of the eigenvalues, along the diagonal's sign.
        p: The p-value of the trace.
    """

    share: float
    allowed: float
    dominance: float
    positive: float
    p: float

    @property
    def relative(self) -> float:
        """The share relative to what the rank allows, signed, in [−1, 1]."""
        return self.share / self.allowed


def identity_share(circuit: Float[Tensor, "token token"]) -> tuple[float, float]:
    """Share of a token × token circuit's energy that c·I explains, signed as c; and p.

    Rows and columns are centred first. 0 and 1 for a circuit of nothing.
    """
    m = circuit.double()
    m = m - m.mean(0, keepdim=True)
    m = m - m.mean(1, keepdim=True)
    n, energy, trace = len(m), float(m.square().sum()), float(m.trace())
    if energy <= _NOTHING * max(float(circuit.double().square().sum()), 1e-300):
        return 0.0, 1.0
    share = trace * abs(trace) / (energy * (n - 1))
    std, least = sqrt(energy / (n - 1)), permutations_least(n)
    return share, from_moments(abs(trace), 0.0, std, least=least).p


def diagonal_of(
    left: Float[Tensor, "token width"], right: Float[Tensor, "token width"], rank: int
) -> Diagonal:
    """How diagonal left rightᵀ is.

    Args:
        left: What a head reads of each token, in any basis of the stream.
        right: What it compares that with, or writes it to.
        rank: The largest rank that the circuit's weights can have.

    Returns:
        The numbers; nothing diagonal, with p = 1, where products are beyond the largest number.
    """
    left, right = (side.double() - side.double().mean(0) for side in (left, right))
    m, n = left @ right.mT, len(left)
    allowed = min(max(rank, 1), n - 1) / (n - 1)
    if not m.isfinite().all():
        return Diagonal(0.0, allowed, 0.0, 0.0, 1.0)
    share, p = identity_share(m)
    if share == 0:
        return Diagonal(0.0, allowed, 0.0, 0.0, p)
    m = m if share > 0 else -m
    own = m.diagonal().clone()
    m.fill_diagonal_(-torch.inf)
    leads = (own > 0) & (own - m.amax(1) >= _LEAD * own)
    eigen = torch.linalg.eigvals(right.mT @ left)
    positive = float(eigen.real.sum() / eigen.abs().sum())
    return Diagonal(share, allowed, float(leads.double().mean()), positive * (1, -1)[share < 0], p)
