"""An architecture: a folder with ``config.json`` and ``model.safetensors`` of a module of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import prooflens as pl


class Attention(nn.Module):
    """Causal attention with two heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.pattern = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """What the heads write, ``[batch, pos, width]``."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        pattern = self.pattern(scores.masked_fill(later, -torch.inf).softmax(-1))
        return self.out((pattern @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention, then an FFN."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after the layer, ``[batch, pos, width]``."""
        x = x + self.attention(x)
        return x + self.mlp(x)


class Toy(nn.Module):
    """One layer between an embedding and an unembedding."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.ModuleList([Layer(width, heads)])
        self.unembed = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits, ``[batch, pos, vocabulary]``."""
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.unembed(x)


def load(folder: Path) -> Any:
    """The model of a folder, with hooks."""
    config = json.loads((folder / "config.json").read_text())
    sizes = [config[name] for name in ("vocab_size", "n_positions", "width", "heads")]
    module = Toy(*sizes).eval()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    names = {
        "blocks.0.hook_resid_pre": "layers.0:in",
        "blocks.0.attn.hook_pattern": "layers.0.attention.pattern",
        "blocks.0.attn.hook_z": f"layers.0.attention.out:in/{config['heads']}",
        "blocks.0.hook_attn_out": "layers.0.attention",
        "blocks.0.hook_mlp_out": "layers.0.mlp",
        "blocks.0.hook_resid_post": "layers.0",
    }
    return pl.wrap(module, names, example=torch.zeros(2, 4, dtype=torch.long))


def mapping(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where the heads' weights lie in the file."""
    heads, width = config["heads"], config["width"]
    parts = {"W_Q": "query", "W_K": "key", "W_V": "value"}
    rows = {
        part: {"name": f"layers.{{layer}}.attention.{name}.weight", "pattern": "(h k) d -> h d k"}
        for part, name in parts.items()
    }
    for part in ("W_K", "W_V"):
        rows[part]["pattern"] = "(g k) d -> g d k"
    return {
        "n_layers": 1,
        "n_heads": heads,
        "d_model": width,
        "d_head": width // heads,
        **rows,
        "W_O": {"name": "layers.{layer}.attention.out.weight", "pattern": "d (h k) -> h k d"},
        "embedding": {"name": "embed.weight", "pattern": "v d -> v d"},
        "unembedding": {"name": "unembed.weight", "pattern": "v d -> v d"},
    }


TOY = pl.weights.Architecture(load=load, mapping=mapping)
