"""What lies between a head's write z W_O and the residual stream.

    stream gains   z W_O                             in most models
                   gain ⊙ z W_O / scale              where a norm follows the attention

``scale`` is that norm's denominator at each place (``ln1_post.hook_scale``), held as it is: the
parts of a sum then stay parts of a sum. A norm after the FFN needs nothing, since ``hook_mlp_out``
is read behind it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attribution.unembedding import norm_gain

_CLOSE = 1e-4
_ROUNDINGS = 4


def post_norm(model: Any, layer: int) -> Any | None:
    """The norm that follows a layer's attention, before the stream; None where there is none."""
    blocks = getattr(model, "blocks", None)
    return None if blocks is None else getattr(blocks[layer], "ln1_post", None)


def post_scale(layer: int) -> str:
    """The hook with the denominator ``[row, pos, 1]`` of the norm that follows the attention."""
    return f"blocks.{layer}.ln1_post.hook_scale"


def reaching(
    model: Any,
    layer: int,
    written: Float[Tensor, "*place d_model"],
    scale: Float[Tensor, "*place 1"],
) -> Float[Tensor, "*place d_model"]:
    """What reaches the stream of something that is written in front of the norm.

    Args:
        model: A model with ``blocks``, of which this layer has a norm after its attention.
        layer: The layer.
        written: A part of what the norm reads.
        scale: The norm's denominator at the same places.
    """
    norm = post_norm(model, layer)
    if not getattr(norm, "uses_rms_norm", True):
        written = written - written.mean(-1, keepdim=True)
    found, gain = written / scale, norm_gain(norm)
    return found if gain is None else found * gain.to(found)


def off_by(found: Tensor, true: Tensor) -> float:
    """How far a tensor is from the true one, in units of the true one's norm."""
    wide = true.double()
    size = wide.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return float((found - wide).norm() / size)


def tolerance(dtype: torch.dtype) -> float:
    """How far a sum of activations of a number format may be from their true sum."""
    return max(_CLOSE, _ROUNDINGS * torch.finfo(dtype).eps)
