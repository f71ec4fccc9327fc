"""A GPT-2 under Hugging Face's names, lean enough to be trained on two cores.

    x_0 = wte[token] + wpe[position]
    x ← x + attention(LayerNorm(x)),   x ← x + FFN(LayerNorm(x))      in every layer
    logits = LayerNorm(x) wteᵀ

The parameters have the names and layouts of ``GPT2LMHeadModel``, so what is trained here is loaded
there as it is. Position embeddings start as sines and cosines of falling frequency, four times as
long as the tokens' embeddings: a head that looks one position back is then a rotation, found early;
from random numbers every position must be learned by itself. Queries and keys start twice as large
as GPT-2's, so that heads differ in where they look from the first step. All are trained like the
other weights.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from analyses.language.tokens import BEGIN
from prooflens.architectures import write_tensors
from prooflens.errors import Problems

__all__ = ["GPT2", "GPT2Sizes", "write_gpt2"]

_DEVIATION = 0.02  # of initial weights, GPT-2's
_SHARPER = 2.0  # initial queries and keys, of GPT-2's
_POSITIONS = 4.0  # length of initial position embeddings, of the tokens'
_EPSILON = 1e-5


@dataclass(frozen=True)
class GPT2Sizes:
    """The sizes of a GPT-2.

    Attributes:
        vocabulary: Number of tokens.
        context: Number of positions.
        width: Size of the residual stream; the FFN has four times as many neurons.
        layers: Number of layers.
        heads: Heads in each layer; must divide ``width``.

    Raises:
        ArgumentError: naming every size that is out of range.
    """

    vocabulary: int = 1024
    context: int = 256
    width: int = 128
    layers: int = 3
    heads: int = 8

    def __post_init__(self) -> None:
        problems = Problems("model")
        for name, value in vars(self).items():
            problems.need(value > 0, name, "must be positive", value, "raise it")
        problems.raise_if_any()
        good = self.width % (2 * self.heads) == 0
        problems.need(good, "width", "must be even multiples of heads", self.width, "change it")
        good, rule = self.vocabulary > 256, "must be more than 256, one token a byte"
        problems.need(good, "vocabulary", rule, self.vocabulary, "raise it")
        problems.raise_if_any()


class GPT2(nn.Module):
    """The model; ``parameters`` carry Hugging Face's names.

    Args:
        sizes: Its sizes.
        seed: Seed of the initial weights.
    """

    def __init__(self, sizes: GPT2Sizes, seed: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, shape in _shapes(sizes).items():
            self.weights[name.replace(".", "/")] = nn.Parameter(_initial(name, shape, generator))
        with torch.no_grad():
            self["transformer.wpe.weight"].copy_(_sines(sizes.context, sizes.width))
            for layer in range(sizes.layers):
                looking = self[f"transformer.h.{layer}.attn.c_attn.weight"]
                looking[:, : 2 * sizes.width].mul_(_SHARPER)
                for part in ("attn", "mlp"):
                    scale = 1 / math.sqrt(2 * sizes.layers)
                    self[f"transformer.h.{layer}.{part}.c_proj.weight"].mul_(scale)

    def __getitem__(self, name: str) -> Tensor:
        """A parameter by its Hugging Face name."""
        found: Tensor = self.weights[name.replace(".", "/")]
        return found

    def weights_by_name(self) -> dict[str, Tensor]:
        """All parameters under Hugging Face's names."""
        return {name.replace("/", "."): weight for name, weight in self.weights.items()}

    def forward(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Return the logits ``[row, position, token]`` of ids ``[row, position]`` whose first
        position is ``offset``."""
        return self._end(self._residual(tokens, offset)[0])

    def patterns(self, tokens: Tensor) -> Tensor:
        """Return the attention patterns of all heads, ``[layer, row, head, query, key]``."""
        return torch.stack(self._residual(tokens, 0, patterns=True)[1])

    def _end(self, x: Tensor) -> Tensor:
        return self._norm(x, "transformer.ln_f") @ self["transformer.wte.weight"].T

    def _residual(
        self, tokens: Tensor, offset: int, patterns: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        length, found = tokens.shape[1], []
        x = functional.embedding(tokens, self["transformer.wte.weight"])
        x = x + self["transformer.wpe.weight"][offset : offset + length]
        for layer in range(self.sizes.layers):
            name = f"transformer.h.{layer}"
            q, k, v = self._heads(self._norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn")
            if patterns:
                mask = torch.ones(length, length, dtype=torch.bool).tril()
                scores = q @ k.mT / math.sqrt(q.shape[-1])
                found.append(scores.masked_fill(~mask, -math.inf).softmax(-1))
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self._linear(z.transpose(1, 2).flatten(2), f"{name}.attn.c_proj")
            hidden = self._linear(self._norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
            hidden = functional.gelu(hidden, approximate="tanh")
            x = x + self._linear(hidden, f"{name}.mlp.c_proj")
        return x, found

    def _heads(self, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``[row, head, position, d_head]``."""
        rows, length, width = x.shape
        heads = self.sizes.heads
        parts = self._linear(x, name).view(rows, length, 3, heads, width // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def _linear(self, x: Tensor, name: str) -> Tensor:
        weight, flat = self[f"{name}.weight"], x.flatten(0, 1)
        return torch.addmm(self[f"{name}.bias"], flat, weight).view(*x.shape[:-1], -1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        gain, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return functional.layer_norm(x, gain.shape, gain, bias, _EPSILON)


def _shapes(sizes: GPT2Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its Hugging Face name."""
    width, wide = sizes.width, 4 * sizes.width
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (sizes.vocabulary, width),
        "transformer.wpe.weight": (sizes.context, width),
    }
    for layer in range(sizes.layers):
        name = f"transformer.h.{layer}"
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{name}.{norm}.weight": (width,), f"{name}.{norm}.bias": (width,)}
        matrices = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        matrices |= {"mlp.c_fc": (width, wide), "mlp.c_proj": (wide, width)}
        for part, shape in matrices.items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[1:]}
    return shapes | {"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if ".ln_" in name and name.endswith("weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    return torch.randn(shape, generator=generator) * _DEVIATION


def _sines(positions: int, width: int) -> Tensor:
    """Return the initial position embeddings ``[position, width]``: sines and cosines, with larger
    norms than the tokens' embeddings."""
    rates = 10_000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1) * _DEVIATION * math.sqrt(2) * _POSITIONS


def write_gpt2(model: GPT2, folder: Path) -> None:
    """Write ``config.json`` and the weights in float16 as ``model.safetensors``."""
    sizes = model.sizes
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": sizes.vocabulary,
        "n_positions": sizes.context,
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": _EPSILON,
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN,
        "eos_token_id": BEGIN,
        "dtype": "float16",
    }
    half = {name: weight.detach().half() for name, weight in model.weights_by_name().items()}
    write_tensors(half, folder / "model.safetensors", {"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
