"""Attention bounded as a whole: every sampled input's output is inside, whatever the weights."""

from typing import Any

import numpy as np
import pytest
import torch

from interp.bounds.affine import Affine, Arithmetic
from interp.bounds.network import after_attention, embed_inputs, read_out
from interp.bounds.passed_on import (
    along,
    bound_named_lag,
    not_along,
    not_named,
    values_of,
    weights_of_keys,
)
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SHAPE: dict[str, Any] = {"d_out": 1, "n_ctx": 6, "d_model": 6, "d_head": 3, "input": "real"}
NAMED: list[dict[str, Any]] = [
    {"lag_bias": "relative_keys", "n_heads": (0, 1), "ffn": (5,)},
    {"lag_bias": "bump", "n_heads": (0, 2), "ffn": (5,), "norm": "layernorm"},
    {"lag_bias": "lin", "score": "slope", "n_heads": (0, 1), "ffn": (4,)},
    {"lag_bias": "table", "n_layers": 1, "n_heads": 2},
]


def model_with(options: dict[str, Any], seed: int, d_in: int) -> Any:
    spec = TransformerSpec(
        **SHAPE | {"d_in": d_in, "n_layers": 2, "score": "none", "lag_bias": "none"} | options
    )
    model = SequenceTransformer(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.4 * torch.randn(weight.shape, generator=generator)
        for block, heads in zip(model.blocks, spec.heads, strict=True):
            block.attn.W_O[heads:] = 0.0
    return model


def tokens(values: np.ndarray, bits: np.ndarray, reach: float, symbol: int) -> Affine:
    centre = np.stack((values, bits), -1)[:, None]
    noise = np.zeros((2, *centre.shape))
    noise[symbol, ..., 0] = reach
    return Affine(centre, noise, np.zeros_like(centre))


@pytest.mark.parametrize("options", NAMED, ids=lambda o: str(o["lag_bias"]))
def test_a_named_lag_holds_every_sampled_row(options: dict[str, Any]) -> None:
    grid = np.repeat([-0.75, -0.25, 0.25, 0.75], 2), np.tile([-1.0, 1.0], 4)
    every = tokens(*grid, 0.25, 1)
    for seed in range(3):
        model, rng = model_with(options, seed, 2), np.random.default_rng(seed)
        assert not not_named(model)
        query = tokens(np.full(8, 0.25), np.full(8, 1.0), 0.25, 0)
        for dtype, kind in (("real", torch.float64), ("float32", torch.float32)):
            others = values_of(model, every, Arithmetic(dtype, symbols=2))
            ar = Arithmetic(dtype, symbols=2)
            low, high = read_out(
                model, bound_named_lag(model, every, query, 2, [4, 5], others, ar), ar
            ).bounds()
            weight_low, weight_high = weights_of_keys(
                model, query, 2, [4, 5], Arithmetic("real", symbols=2)
            )
            for n in (4, 5):
                x = np.stack((rng.uniform(-1, 1, (512, n)), rng.choice([-1.0, 1.0], (512, n))), -1)
                x[:, -1, 0], x[:, -1, 1] = rng.uniform(0, 0.5, 512), 1.0
                x = np.float32(x).astype(np.float64)
                cell = np.minimum((x[:, -3, 0] + 1) * 2, 3).astype(int) * 2 + (x[:, -3, 1] > 0)
                net = model.to(kind)
                with torch.no_grad():
                    out, cache = net.run_with_cache(torch.from_numpy(x).to(kind))
                seen = out[:, -1, 0].double().numpy()
                slack = 1e-9 if dtype == "real" else 0.0
                assert (low[cell, 0] - slack <= seen).all()
                assert (seen <= high[cell, 0] + slack).all()
                layer = model.spec.n_layers - 1
                row = cache[f"blocks.{layer}.attn.hook_pattern"][:, :, -1].double().numpy()
                rest = row.sum(-1) - row[..., -3] - row[..., -1]
                for place, share in ((0, row[..., -3]), (1, rest), (2, row[..., -1])):
                    assert (weight_low[:, :, 0, place].min(0) - 1e-6 <= share).all()
                    assert (share <= weight_high[:, :, 0, place].max(0) + 1e-6).all()
                model.float()


def free_inputs(cells: int) -> Affine:
    """In every cell four inputs, each anywhere in [−1, 1]."""
    noise = np.zeros((4, cells, 4, 1))
    noise[np.arange(4), :, np.arange(4), 0] = 1.0
    return Affine(np.zeros((cells, 4, 1)), noise, np.zeros((cells, 4, 1)))


@pytest.mark.parametrize("bias", ["lin", "table"])
def test_along_a_known_mean_holds_every_sampled_input(bias: str) -> None:
    for seed in range(4):
        options = {"lag_bias": bias, "n_layers": 1, "n_heads": 2, "ffn": (6,)}
        model, rng = model_with(options, seed, 1), np.random.default_rng(seed)
        assert not not_along(model)
        rho, n = rng.normal(size=4), 8
        reach = np.abs(rho).sum()
        ends = np.linspace(-reach, reach, n + 1)
        free, ar = free_inputs(n), Arithmetic("real", symbols=5)
        middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * 1.001
        low, high = read_out(model, along(model, free, rho, middle, half, ar), ar).bounds()
        x = rng.uniform(-1, 1, (2000, 4))
        x[1000:] = np.sign(x[1000:])
        cell = np.clip(np.searchsorted(ends, x @ rho) - 1, 0, n - 1)
        with torch.no_grad():
            seen = model.double()(torch.from_numpy(x[..., None]))[:, -1, 0].numpy()
        assert (low[cell, 0] - 1e-9 <= seen).all()
        assert (seen <= high[cell, 0] + 1e-9).all()


def test_a_head_that_the_spec_denies_is_seen() -> None:
    model = model_with(NAMED[0], 0, 2)
    with torch.no_grad():
        model.blocks[0].attn.W_O[0, 0, 0] = 1e-3
    assert "heads in the last layer alone" in not_named(model)


def test_other_models_are_refused_with_the_reason() -> None:
    both = model_with({"lag_bias": "relative_keys", "n_heads": 1}, 0, 2)
    assert "heads in the last layer alone" in not_named(both)
    dots = model_with({"score": "dot", "n_layers": 1, "n_heads": 1}, 0, 1)
    assert "scores of query and lag alone" in not_named(dots)
    assert not_along(dots)


def test_attention_without_heads_that_overflows_makes_nothing_known() -> None:
    model = model_with(NAMED[0], 0, 2)
    every = tokens(np.zeros(2), np.array([-1.0, 1.0]), 1.0, 1)
    with torch.no_grad():
        model.embed.W_E.mul_(100.0)
    finite = []
    for size in (1.0, 1e38):
        with torch.no_grad():
            model.blocks[0].attn.W_V.mul_(size)
        ar = Arithmetic("float32", symbols=2)
        with np.errstate(all="ignore"):
            others = values_of(model, every, Arithmetic("float32", symbols=2))
            form = read_out(model, bound_named_lag(model, every, every, 1, [3], others, ar), ar)
        finite.append(bool(np.isfinite(form.bounds()).all()))
    assert finite == [True, False]
    with torch.no_grad():
        assert model(torch.full((1, 3, 2), 1.0)).isnan().any()


def test_along_keeps_the_attention_that_rounding_leaves_unsure() -> None:
    options = {"lag_bias": "lin", "n_layers": 1, "n_heads": 1, "normalizer": "none"}
    model = model_with(options, 0, 1)
    with torch.no_grad():
        model.blocks[0].attn.b_V.fill_(1e6)
    free, ar = free_inputs(1), Arithmetic("float32", symbols=5)
    rho, ends = np.full(4, 0.25), (np.zeros(1), np.ones(1))
    whole = along(model, free, rho, *ends, ar)
    seen = after_attention(
        model.blocks[0],
        embed_inputs(model, free, ar),
        Arithmetic("float32", symbols=5),
        last_only=True,
    )
    unsure = np.abs(seen.generators[5:]).sum(0)[:, -1]
    assert unsure.max() > 1e-3
    assert (whole.radius >= unsure).all()
