"""How a sequence enters and leaves the model: embedding, positions, unembedding.

Real inputs are embedded linearly (``x W_E``, in the model's dtype), tokens by row; the output is
read linearly.
Sinusoidal positions are fixed: dimension 2i is sin(t·10000^{−2i/D}), 2i+1 the cosine.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.models.spec import TransformerSpec

__all__ = ["Embed", "PosEmbed", "TiedUnembed", "Unembed", "sinusoids"]


class Embed(nn.Module):
    """The embedding ``W_E`` [d_in, d_model]: linear for real inputs, a lookup for tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.real = spec.input == "real"
        self.W_E = nn.Parameter(torch.zeros(spec.d_in, spec.d_model, dtype=spec.torch_dtype))

    def forward(
        self, inputs: Float[Tensor, "batch pos d_in"] | Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The embedded sequence ``[batch, pos, d_model]``."""
        if self.real:
            return inputs.to(self.W_E.dtype) @ self.W_E
        return F.embedding(inputs, self.W_E)  # refuses ids out of range, negative ones too


class PosEmbed(nn.Module):
    """The absolute positions ``W_pos`` [n_ctx, d_model], learned or sinusoidal."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        if spec.positions == "learned":
            self.W_pos = nn.Parameter(torch.zeros(spec.n_ctx, spec.d_model, dtype=spec.torch_dtype))
        else:
            waves = sinusoids(spec.n_ctx, spec.d_model).to(spec.torch_dtype)
            self.register_buffer("W_pos", waves, persistent=False)

    def forward(
        self, embedded: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The code of each position, expanded to every row of the batch."""
        # A copy: a hook may edit it in place, and must not reach the parameter.
        return self.W_pos[: embedded.shape[1]].expand_as(embedded).clone()


def sinusoids(n_ctx: int, d_model: int) -> Float[Tensor, "n_ctx d_model"]:
    """Sinusoidal position codes in float64."""
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * 10_000.0 ** (-even / d_model)
    waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(start_dim=1)
    return waves[:, :d_model]


class Unembed(nn.Module):
    """The unembedding ``x W_U + b_U`` with ``W_U`` [d_model, d_out]."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        dtype = spec.torch_dtype
        self.W_U = nn.Parameter(torch.zeros(spec.d_model, spec.d_out, dtype=dtype))
        self.b_U = nn.Parameter(torch.zeros(spec.d_out, dtype=dtype))

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_out"]:
        """The model's output at every position ``[batch, pos, d_out]``."""
        return resid @ self.W_U + self.b_U


class TiedUnembed(nn.Module):
    """The unembedding ``x W_Eᵀ + b_U``, whose weight is shared with the embedding and stored
    there."""

    embed: Embed

    def __init__(self, spec: TransformerSpec, embed: Embed) -> None:
        super().__init__()
        object.__setattr__(self, "embed", embed)  # not a submodule: W_E is listed once
        self.b_U = nn.Parameter(torch.zeros(spec.d_out, dtype=spec.torch_dtype))

    @property
    def W_U(self) -> Float[Tensor, "d_model d_out"]:
        """The embedding matrix, transposed."""
        return self.embed.W_E.T

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_out"]:
        """The model's output at every position ``[batch, pos, d_out]``."""
        return resid @ self.W_U + self.b_U
