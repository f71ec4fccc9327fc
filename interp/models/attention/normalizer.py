"""Turn scores into an attention pattern, by a softmax or by its numerator alone.

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
    """The attention mask: true where a query may attend to a key."""
    allowed = torch.ones(n, n, dtype=torch.bool, device=device)
    if causal:
        allowed = allowed.tril()
    if mask_self:
        allowed = allowed & ~torch.eye(n, dtype=torch.bool, device=device)
    return allowed


def normalize(
    scores: Float[Tensor, "#batch head query key"], softmax: bool
) -> Float[Tensor, "#batch head query key"]:
    """The attention pattern of masked scores, which are −inf where a query may not attend.

    For a query that may attend to nothing, pass finite scores; its row of the pattern means
    nothing.
    """
    return scores.softmax(dim=-1) if softmax else scores.exp()
