"""Rotary positions (RoPE): queries and keys turned by an angle that grows with the position.

Pairs (i, i + d/2) of a head's dimensions are rotated by t·θ_i with θ_i = 10000^{−2i/d}, so the dot
product of a query at t and a key at j depends on t − j only.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["rotate"]

_BASE = 10_000.0


def rotate(
    x: Float[Tensor, "batch pos head d_head"], width: int
) -> Float[Tensor, "batch pos head d_head"]:
    """Rotate the first ``width`` dimensions of each vector by its position; the rest is padding."""
    half = width // 2
    exact = torch.promote_types(x.dtype, torch.float32)  # half precision cannot count past 256
    inverse = _BASE ** (-torch.arange(half, device=x.device, dtype=exact) / half)
    angle = torch.arange(x.shape[1], device=x.device, dtype=exact)[:, None] * inverse
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    first, second, padding = x[..., :half], x[..., half:width], x[..., width:]
    turned = (first * cos - second * sin, second * cos + first * sin, padding)
    return torch.cat(turned, dim=-1)
