"""Matrices of heads → a model of transformers in Llama's or Pythia's format.

Llama: RMSNorm, all coordinates turn, two heads share their keys and values; its FFN is gated, and
there are no biases. Pythia: LayerNorm, a quarter of the coordinates turns, and the FFN reads what
attention reads. FFNs and biases are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

__all__ = ["BASE", "FORMATS", "Matrices", "RotarySizes", "empty", "model_from_matrices", "turning"]

Format = Literal["llama", "pythia"]

FORMATS: tuple[Format, ...] = get_args(Format)

BASE = {"llama": 1e6, "pythia": 1e4}
"""Base of the rotary angles (``rope_theta``). The slowest coordinate turns by about 1 / BASE
radians from one position to the next."""


@dataclass(frozen=True)
class RotarySizes:
    """The sizes of one model.

    Attributes:
        format: ``llama`` or ``pythia``.
        vocabulary: How many tokens there are; the first begins every row.
        length: How many positions a row may have.
        heads: How many heads each layer has: an even number.
        idle: Layers without a job, after the others.
    """

    format: Format
    vocabulary: int
    length: int
    heads: int
    idle: int = 0


@dataclass(frozen=True)
class Matrices:
    """The weights of a model in the stream's own coordinates.

    Attributes:
        Q, K, V: ``[layer, head, width, d_head]``.
        O: ``[layer, head, d_head, width]``.
        gains: Gains of every layer's norm, then of the last one, ``[layer + 1, width]``; what
            reads a normed stream is divided by it.
        embed: ``[token, width]``.
        unembed: ``[width, token]``.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    O: Tensor  # noqa: E741
    gains: Tensor
    embed: Tensor
    unembed: Tensor


def turning(form: Format, d_head: int) -> int:
    """Return how many of a head's coordinates are rotated by position."""
    return d_head // 4 if form == "pythia" else d_head


@torch.no_grad()
def model_from_matrices(found: Matrices, sizes: RotarySizes) -> Any:
    """Build a transformers model with the given weights."""
    layers, _, width, d_head = found.Q.shape
    made = empty(sizes, layers, width, d_head)
    into = {name: getattr(found, name) / found.gains[:-1, None, :, None] for name in "QKV"}
    heads = _llama if sizes.format == "llama" else _pythia
    values, names = heads(into, found.O), _NAMES[sizes.format]
    values[names["embed"]] = found.embed
    values[names["unembed"]] = (found.unembed / found.gains[-1][:, None]).T
    values[names["final"]] = found.gains[-1]
    for layer in range(layers):
        values[names["norm"].format(layer)] = found.gains[layer]
    for name, tensor in made.state_dict().items():
        if name in values:
            tensor.copy_(values[name])
        elif name.endswith("bias") or ".mlp." in name:
            tensor.zero_()
    return made


_NAMES = {
    "llama": {
        "embed": "model.embed_tokens.weight",
        "unembed": "lm_head.weight",
        "final": "model.norm.weight",
        "norm": "model.layers.{}.input_layernorm.weight",
    },
    "pythia": {
        "embed": "gpt_neox.embed_in.weight",
        "unembed": "lm_head.weight",
        "final": "gpt_neox.final_layer_norm.weight",
        "norm": "gpt_neox.layers.{}.input_layernorm.weight",
    },
}


def _llama(into: Mapping[str, Tensor], out: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for layer in range(len(out)):
        name = f"model.layers.{layer}.self_attn."
        for kind, every in (("Q", 1), ("K", 2), ("V", 2)):  # two heads share keys and values
            found[f"{name}{kind.lower()}_proj.weight"] = _join_heads(into[kind][layer, ::every])
        found[f"{name}o_proj.weight"] = out[layer].flatten(0, 1).T
    return found


def _pythia(into: Mapping[str, Tensor], out: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for layer in range(len(out)):
        name = f"gpt_neox.layers.{layer}.attention."
        together = torch.cat([into[kind][layer] for kind in "QKV"], dim=-1)  # head by head
        found[f"{name}query_key_value.weight"] = _join_heads(together)
        found[f"{name}dense.weight"] = out[layer].flatten(0, 1).T
    return found


def _join_heads(heads: Tensor) -> Tensor:
    """Reshape matrices ``[head, width, d_head]`` to the weight of a linear map, with the rows of
    one head after those of another."""
    return heads.permute(0, 2, 1).flatten(0, 1)


def empty(sizes: RotarySizes, layers: int, width: int, d_head: int) -> Any:
    """Return a transformers model of the given sizes with the library's initial weights."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

    alike: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": width,
        "intermediate_size": 8,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": sizes.length,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": BASE[sizes.format]}
    if sizes.format == "llama":
        alike |= {"num_key_value_heads": sizes.heads // 2, "rope_parameters": rope}
        return LlamaForCausalLM(LlamaConfig(**alike)).double()
    rope["partial_rotary_factor"] = turning(sizes.format, d_head) / d_head
    alike |= {"use_parallel_residual": True, "rope_parameters": rope}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**alike)).double()
