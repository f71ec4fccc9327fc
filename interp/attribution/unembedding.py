"""The linear map from the final residual stream to logits, including the final norm's gain.

    logits = ((resid / scale) @ (gain · W_U) + bias @ W_U + b_U) · factor

``scale`` is the final norm's denominator at each place, held fixed. LayerNorm also subtracts the
mean over d_model from the stream, which is folded into the matrix. The norm's bias through W_U and
b_U do not depend on the stream and belong to no component: :func:`logit_offset`. Some architectures
multiply their logits by a number of the configuration (:func:`logit_factor`).

A logit cap (tanh) after the unembedding is not linear and is left out: logits are read before it
(:func:`uncap_logits`).

*Norms after attention* lie between a head's output z W_O and the residual stream:

    stream gains   z W_O                             in most models
                   gain ⊙ z W_O / scale              if a norm follows the attention

``scale`` is that norm's denominator at each place (``ln1_post.hook_scale``). It is held fixed, so
that the map is linear and the stream stays a sum of outputs. A norm after the FFN needs no such
treatment, because ``hook_mlp_out`` is read after it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.site import Site

SCALE = "ln_final.hook_scale"
"""Name of the hook with the denominator of the final norm, ``[row, pos, 1]``."""

_AT_ONCE = 4096
"""Number of unembedding columns (tokens) that are converted to float64 at the same time. It bounds
memory; the result does not depend on it."""

_FACTORS = {"logit_scale": 1, "logits_scaling": -1, "lm_head_multiplier": 1}
"""Configuration entries that scale the logits → the power with which they do so: 1 if logits are
multiplied by the entry (Cohere ``logit_scale``, Falcon H1 ``lm_head_multiplier``), −1 if they are
divided by it (Granite ``logits_scaling``)."""


def logit_factor(model: Any) -> float:
    """Return the factor that a pretrained model multiplies its logits by; 1 if its configuration
    has none."""
    config, factor = _configuration(model), 1.0
    for name, power in _FACTORS.items():
        value = getattr(config, name, None)
        factor *= 1.0 if value is None else float(value) ** power
    return factor


def logit_cap(model: Any) -> float | None:
    """Return the c of logits that are c · tanh(logits / c); None if they are not capped."""
    value = getattr(_configuration(model), "final_logit_softcapping", None)
    return float(value) if value else None


def uncap_logits(
    model: Any, logits: Float[Tensor, "*place vocab"]
) -> Float[Tensor, "*place vocab"]:
    """Return the logits before their cap, in float64."""
    wide, cap = logits.double(), logit_cap(model)
    return wide if cap is None else cap * torch.atanh(wide / cap)


def _configuration(model: Any) -> Any:
    """Return the configuration of the pretrained model inside a bridge, or that of its text
    model."""
    config: Any = getattr(getattr(model, "original_model", None), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


@torch.no_grad()
def unembedding(model: Any, *, centred: bool = True) -> Float[Tensor, "d_model vocab"]:
    """Return the matrix from the final residual stream, divided by the norm's scale, to logits.

    Args:
        model: One of our models or a bridge, with ``ln_final`` and ``W_U``.
        centred: Whether to subtract the mean over the vocabulary, which does not change a softmax.
            Use False for outputs that are numbers.

    Returns:
        R with (resid / scale) @ R = (centred) logits − :func:`logit_offset`, in the weights' dtype,
        float32 at least.
    """
    unembedding, gain = model.W_U.detach(), norm_gain(model.ln_final)
    found = torch.empty_like(
        unembedding, dtype=torch.promote_types(unembedding.dtype, torch.float32)
    )
    pieces = [slice(i, i + _AT_ONCE) for i in range(0, unembedding.shape[1], _AT_ONCE)]

    factor = logit_factor(model)

    def read(some: slice) -> Tensor:
        piece = unembedding[:, some].double() * factor
        piece = piece if gain is None else gain.double()[:, None] * piece
        return piece - piece.mean(0, keepdim=True) if takes_mean_out(model) else piece

    total = sum(read(some).sum(1, keepdim=True) for some in pieces) if centred else 0.0
    for some in pieces:
        found[:, some] = read(some) - total / unembedding.shape[1]
    return found


@torch.no_grad()
def logit_offset(model: Any, *, centred: bool = True) -> Float[Tensor, " vocab"]:
    """Return the part of the logits that does not depend on the stream: the norm's bias through
    W_U, plus b_U, times the factor.

    Args:
        model: One of our models or a bridge, with ``ln_final``, ``W_U`` and ``b_U``.
        centred: Whether to subtract the mean over the vocabulary.
    """
    found = model.b_U.detach().double()
    if (bias := _parameter(model.ln_final, "b", "bias")) is not None:
        found = found + bias.double() @ model.W_U.detach().double()
    found = found * logit_factor(model)
    return found - found.mean() if centred else found


def has_final_norm(model: Any) -> bool:
    """Return whether the model has a final norm, whose scale divides the stream."""
    return str(model.cfg.normalization_type or "") in ("LN", "LNPre", "RMS", "RMSPre")


def norm_gain(norm: Any) -> Tensor | None:
    """Return the learned gain ``[d_model]`` of a normalisation layer; None if it has no gain.

    It is 1 + weight for a norm whose weight is stored as an offset from 1.
    """
    found = _parameter(norm, "w", "weight")
    if found is not None and getattr(norm, "uses_weight_offset", False):
        return 1 + found
    return found


def norm_shift(norm: Any) -> Tensor | None:
    """Return the learned bias ``[d_model]`` of a normalisation layer; None if it has no bias."""
    return _parameter(norm, "b", "bias")


def takes_mean_out(model: Any) -> bool:
    """Return whether the model's norms are layer norms, which subtract the mean over features.

    False for RMS norms and for models without norms.
    """
    kind, cfg = str(model.cfg.normalization_type or ""), model.cfg
    rms = getattr(cfg, "final_rms", False) or getattr(model.ln_final, "uses_rms_norm", False)
    return kind.startswith("LN") and not rms


def _parameter(norm: Any, *names: str) -> Tensor | None:
    """Return the first of several attributes that is a tensor; None if the norm has none of
    them."""
    for name in names:
        found = getattr(norm, name, None)
        if isinstance(found, Tensor):
            return found.detach()
    return None


_CLOSE = 1e-4
_ROUNDINGS = 4


def post_norm(model: Any, layer: int) -> Any | None:
    """Return the norm between a layer's attention and the stream; None if there is none."""
    blocks = getattr(model, "blocks", None)
    return None if blocks is None else getattr(blocks[layer], "ln1_post", None)


def post_scale(layer: int) -> str:
    """Return the hook with the denominator ``[row, pos, 1]`` of the norm that follows the
    attention."""
    return Site(layer, "ln1_post.hook_scale").name


def reaching(
    model: Any,
    layer: int,
    written: Float[Tensor, "*place d_model"],
    scale: Float[Tensor, "*place 1"],
) -> Float[Tensor, "*place d_model"]:
    """Return what the norm after attention makes of a part of its input, with its scale held fixed.

    Args:
        model: A model with ``blocks``, of which this layer has a norm after its attention.
        layer: The layer.
        written: A part of the norm's input.
        scale: The norm's denominator at the same places.
    """
    norm = post_norm(model, layer)
    if not getattr(norm, "uses_rms_norm", True):
        written = written - written.mean(-1, keepdim=True)
    found, gain = written / scale, norm_gain(norm)
    return found if gain is None else found * gain.to(found)


def off_by(found: Tensor, true: Tensor) -> float:
    """Return the relative error ‖found − true‖ / ‖true‖, with Euclidean norms over all entries."""
    wide = true.double()
    size = wide.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return float((found - wide).norm() / size)


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative error that rounding can cause in a sum of activations of a number
    format."""
    return max(_CLOSE, _ROUNDINGS * torch.finfo(dtype).eps)
