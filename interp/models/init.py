"""Initial weights: Gaussian with variance 1/fan-in from an explicit seed.

Biases start at zero, gains at one, and the score terms' scalars at the values that their modules
set (identity scalars at 0, slopes p_h = 2^{−h}). Query-side vectors w start small, and lag tables
and relative keys close to zero but not at it, so that heads differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from interp.models.attention.heads import Attention
from interp.models.ffn import FFN
from interp.models.spec import TransformerSpec

_SMALL = 0.02


@runtime_checkable
class Weights(Protocol):
    """The parts of a model whose weights are drawn, such as a
    :class:`~interp.models.transformer.SequenceTransformer`."""

    spec: TransformerSpec
    embed: Any
    pos_embed: Any
    input_ffn: Any
    blocks: Any
    unembed: Any


_Drawn = tuple[torch.Tensor, float]
"""A weight (or the part of it that the model uses), and the standard deviation of its initial
values."""


def initialize(model: Weights, seed: int) -> None:
    """Draw every weight matrix of ``model``; heads, widths and neurons that a layer lacks stay
    zero."""
    _freeze_unused(model)
    _draw(_drawn_weights(model), seed)


@torch.no_grad()
def _draw(weights: Iterable[_Drawn], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight, std in weights:
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.copy_(drawn.mul_(std))


def fresh_weights(
    model: Any, seeds: Sequence[int], at_once: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the parameters of ``model`` as each seed initialises it, for
    ``torch.func.functional_call``.

    Args:
        model: A model that has :class:`Weights`. Its weights are overwritten; all yielded models
            have its biases and gains.
        seeds: The seeds.
        at_once: The number of models per step.

    Yields:
        Name → ``[model, …]``, for the next ``at_once`` seeds.
    """
    drawn = _drawn_weights(model)
    named = {name: weight.detach() for name, weight in model.named_parameters()}
    for start in range(0, len(seeds), at_once):
        some = seeds[start : start + at_once]
        stacked = {name: w.new_empty((len(some), *w.shape)) for name, w in named.items()}
        for number, seed in enumerate(some):
            _draw(drawn, seed)
            for name, weight in named.items():
                stacked[name][number] = weight
        yield stacked


@torch.no_grad()
def _drawn_weights(model: Weights) -> list[_Drawn]:
    """Return the weights of a model that are drawn, with their standard deviations, in drawing
    order."""
    spec = model.spec
    tokens = spec.input == "tokens"
    found = [(model.embed.W_E, spec.d_model**-0.5 if tokens else spec.d_in**-0.5)]
    if model.pos_embed is not None and spec.positions == "learned":
        found.append((model.pos_embed.W_pos, spec.d_model**-0.5))
    if model.input_ffn is not None:
        found += _of_ffn(model.input_ffn, spec.input_ffn)
    for layer, block in enumerate(model.blocks):
        found += _of_attention(block.attn, spec.heads[layer], spec.head_widths[layer])
        if block.mlp is not None:
            found += _of_ffn(block.mlp, spec.ffn_widths[layer])
    if not spec.tied_unembedding:
        found.append((model.unembed.W_U, spec.d_model**-0.5))
    return found


def _of_attention(attn: Attention, heads: int, width: int) -> Iterator[_Drawn]:
    for name in ("W_Q", "W_K", "W_V"):
        if hasattr(attn, name):
            weight = getattr(attn, name)
            yield weight[:heads, :, :width], weight.shape[1] ** -0.5
    yield attn.W_O[:heads, :width], (max(heads, 1) * width) ** -0.5
    for name, weight in attn.terms.named_parameters():
        if name.endswith((".w", ".bias", ".r")):
            yield weight[:heads, ..., : width if weight.ndim == 3 else None], _SMALL


def _of_ffn(ffn: FFN, widths: tuple[int, ...]) -> Iterator[_Drawn]:
    if not widths:
        return
    for name, weight in ffn.hidden.named_parameters():
        if name.endswith(".W"):
            yield weight, weight.shape[0] ** -0.5
    last = widths[-1]
    yield ffn.W_in[:, :last], ffn.W_in.shape[0] ** -0.5
    yield ffn.W_out[:last], last**-0.5


def _freeze_unused(model: Weights) -> None:
    """Exclude the biases of layers without heads or neurons from training."""
    for layer, block in enumerate(model.blocks):
        if model.spec.heads[layer] == 0:
            block.attn.b_O.requires_grad_(False)
        if block.mlp is not None and not model.spec.ffn_widths[layer]:
            block.mlp.b_out.requires_grad_(False)
