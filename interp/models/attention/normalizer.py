"""From scores to a pattern: softmax, or the numerator alone.

    softmax   exp(score) / Σ_keys exp(score)
    none      exp(score)

The paper's section on adaptive memories drops the denominator, because it depends on the tokens
(`memory` §1.1). Without it rows do not sum to one: read the pattern as a kernel, not as a
distribution.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["allowed_keys", "normalize"]


def allowed_keys(
    n: int, *, causal: bool, mask_self: bool, device: torch.device
) -> Bool[Tensor, "query key"]:
    """True where a query may attend to a key."""
    allowed = torch.ones(n, n, dtype=torch.bool, device=device)
    if causal:
        allowed = allowed.tril()
    if mask_self:
        allowed = allowed & ~torch.eye(n, dtype=torch.bool, device=device)
    return allowed


def normalize(
    scores: Float[Tensor, "batch head query key"],
    allowed: Bool[Tensor, "query key"],
    softmax: bool,
) -> Float[Tensor, "batch head query key"]:
    """The attention pattern of masked scores; a query that may attend to nothing gets zeros.

    ``scores`` must be −inf where not allowed, except in rows without any allowed key.
    """
    pattern = scores.softmax(dim=-1) if softmax else scores.exp()
    empty = ~allowed.any(dim=-1, keepdim=True)
    return pattern.masked_fill(empty, 0.0)
