"""Initial weights: Gaussian with variance 1/fan-in from an explicit seed.

Biases start at zero, gains at one, and the score terms' scalars where their modules put them
(identity scalars at 0, slopes p_h = 2^{−h}). Query-side vectors w start small, and lag tables and
relative keys a little off zero, so that heads differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from interp.models.attention.heads import Attention
from interp.models.ffn import FFN
from interp.models.spec import TransformerSpec

__all__ = ["Weights", "initialize"]

_SMALL = 0.02


@runtime_checkable
class Weights(Protocol):
    """The parts of a model whose weights are drawn, such as of a
    :class:`~interp.models.transformer.SequenceTransformer`.
    """

    spec: TransformerSpec
    embed: Any
    pos_embed: Any
    input_ffn: Any
    blocks: Any
    unembed: Any


@torch.no_grad()
def initialize(model: Weights, seed: int) -> None:
    """Draw every weight matrix of ``model``; heads, widths and neurons that a layer lacks stay
    zero."""
    generator = torch.Generator().manual_seed(seed)
    spec = model.spec
    tokens = spec.input == "tokens"
    _gaussian(model.embed.W_E, spec.d_model**-0.5 if tokens else spec.d_in**-0.5, generator)
    if model.pos_embed is not None and spec.positions == "learned":
        _gaussian(model.pos_embed.W_pos, spec.d_model**-0.5, generator)
    if model.input_ffn is not None:
        _draw_ffn(model.input_ffn, spec.input_ffn, generator)
    for layer, block in enumerate(model.blocks):
        _draw_attention(block.attn, spec.heads[layer], spec.head_widths[layer], generator)
        if block.mlp is not None:
            _draw_ffn(block.mlp, spec.ffn_widths[layer], generator)
    if not spec.tied_unembedding:
        _gaussian(model.unembed.W_U, spec.d_model**-0.5, generator)


def _draw_attention(attn: Attention, heads: int, width: int, generator: torch.Generator) -> None:
    for name in ("W_Q", "W_K", "W_V"):
        if hasattr(attn, name):
            weight = getattr(attn, name)
            _gaussian(weight[:heads, :, :width], weight.shape[1] ** -0.5, generator)
    _gaussian(attn.W_O[:heads, :width], (max(heads, 1) * width) ** -0.5, generator)
    for weight in _small_weights(attn):
        _gaussian(weight[:heads, ..., : width if weight.ndim == 3 else None], _SMALL, generator)
    if heads == 0:
        attn.b_O.requires_grad_(False)


def _small_weights(attn: Attention) -> Iterator[nn.Parameter]:
    for name, weight in attn.terms.named_parameters():
        if name.endswith((".w", ".bias", ".r")):
            yield weight


def _draw_ffn(ffn: FFN, widths: tuple[int, ...], generator: torch.Generator) -> None:
    if not widths:
        ffn.b_out.requires_grad_(False)
        return
    for name, weight in ffn.hidden.named_parameters():
        if name.endswith(".W"):
            _gaussian(weight, weight.shape[0] ** -0.5, generator)
    last = widths[-1]
    _gaussian(ffn.W_in[:, :last], ffn.W_in.shape[0] ** -0.5, generator)
    _gaussian(ffn.W_out[:last], last**-0.5, generator)


def _gaussian(weight: torch.Tensor, std: float, generator: torch.Generator) -> None:
    draw = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    weight.copy_(draw * std)
