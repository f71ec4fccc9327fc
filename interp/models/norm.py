"""Pre-norms with TransformerLens' hooks: LayerNorm, RMSNorm, or none.

    layernorm   (x − mean x) / √(mean (x − mean x)² + ε)  · w + b
    rmsnorm     x / √(mean x² + ε)                        · w
    none        x

``hook_scale`` is the denominator [batch, pos, 1] and ``hook_normalized`` the output, as in
TransformerLens; with ``none`` the scale is one, so that its decompositions hold there too. While
a model is trained and nothing is attached to either, PyTorch's own functions give the output in
one step, equal to rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks.points import HookPoint
from interp.models.spec import TransformerSpec


class Norm(nn.Module):
    """One pre-norm of a model; with ``active`` false it is the identity."""

    def __init__(self, spec: TransformerSpec, active: bool = True) -> None:
        super().__init__()
        self.kind = spec.norm if active else "none"
        self.eps = spec.norm_eps
        self.w: nn.Parameter | None = None
        self.b: nn.Parameter | None = None
        if spec.norm_gain and self.kind != "none":
            self.w = nn.Parameter(torch.ones(spec.d_model, dtype=spec.torch_dtype))
        if spec.norm_gain and self.kind == "layernorm":
            self.b = nn.Parameter(torch.zeros(spec.d_model, dtype=spec.torch_dtype))
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Return the normalised residual stream."""
        watched = self.hook_scale.is_hooked or self.hook_normalized.is_hooked
        if self.training and not watched:
            return self._at_once(x)
        x, scale = self._split(x)
        normalized: Tensor = self.hook_normalized(self._gain(x / self.hook_scale(scale)))
        return normalized

    def apply_to(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Return the normalised stream without firing hooks, for the per-head copies of the
        stream."""
        x, scale = self._split(x)
        return self._gain(x / scale)

    def _at_once(self, x: Tensor) -> Tensor:
        """Return the normalised residual stream with PyTorch's fused functions."""
        width = x.shape[-1:]
        if self.kind == "none":
            return x
        if self.kind == "layernorm":
            return F.layer_norm(x, width, self.w, self.b, self.eps)
        return F.rms_norm(x, width, self.w, self.eps)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "none":
            return x, torch.ones_like(x[..., :1])
        if self.kind == "layernorm":
            x = x - x.mean(dim=-1, keepdim=True)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # squares overflow float16
        return x, (wide.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt().to(x.dtype)

    def _gain(self, x: Tensor) -> Tensor:
        x = x if self.w is None else x * self.w
        return x if self.b is None else x + self.b
