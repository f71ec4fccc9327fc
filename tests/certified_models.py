"""Models that the tests of certificates speak of."""

from dataclasses import replace
from typing import Any

import torch

import prooflens as pl
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.memory import FixedMemory

FIXED = FixedMemory((1, 3), "multiplexer", length=7)


def one_lag(dtype: Any = "float32") -> TransformerSpec:
    """For ±1 sequences of three: one layer, one head that sees lags alone."""
    shape: dict[str, Any] = {"d_in": 1, "d_out": 1, "n_ctx": 3, "d_model": 4, "n_layers": 1}
    attention: dict[str, Any] = {"n_heads": 1, "d_head": 2, "score": "none", "lag_bias": "table"}
    return TransformerSpec(**shape, **attention, input="real", ffn=(3,), dtype=dtype)


def shaken(spec: TransformerSpec, seed: int, size: float, noise: float = 0.2) -> Any:
    """Weights as they are drawn, all of them with noise and then scaled."""
    model = SequenceTransformer(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn(weight.shape, generator=generator)
            weight *= size
    return model


def rows(spec_seed: int, v: int, k: int, **options: Any) -> Any:
    spec = TransformerSpec(
        **{"d_in": v, "d_out": v, "n_ctx": k, "d_model": 8, "n_layers": 1, "d_head": 8} | options
    )
    return SequenceTransformer(spec, seed=spec_seed)


def maximum_model(v: int, k: int, seed: int) -> Any:
    """A model that is right by construction of its weights, then shaken."""
    model = rows(seed, v, k, d_model=v, d_head=v)
    size = torch.arange(v, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E.copy_(torch.eye(v))
        model.blocks[0].attn.b_Q[0].fill_(1.0)
        model.blocks[0].attn.W_K[0] = torch.diag(size * (2.0 + seed) / v**0.5)
        model.blocks[0].attn.W_V[0] = torch.eye(v)
        model.blocks[0].attn.W_O[0] = 8 * torch.eye(v)
        model.unembed.W_U.copy_(torch.eye(v))
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight += 0.02 * seed * torch.randn(weight.shape, generator=generator)
    return model


def brackets(longest: int) -> SequenceTransformer:
    """The compiled program of balanced brackets, with two answers in the place of one bit."""
    made = pl.proofs.compile_program(pl.tasks.language("dyck-1").membership, longest=longest).model
    model = SequenceTransformer(replace(made.spec, d_out=2), seed=0)
    weights = made.state_dict()
    yes, more = weights["unembed.W_U"], weights["unembed.b_U"] - 0.5
    weights |= {"unembed.W_U": torch.cat([-yes, yes], 1), "unembed.b_U": torch.cat([-more, more])}
    model.load_state_dict(weights)
    return model
