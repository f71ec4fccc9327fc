"""Bounds on models: no input's output, in float32 or float64, is ever outside."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from certified_models import shaken

from interp.bounds.affine import Arithmetic, box, exactly, span
from interp.bounds.network import (
    apply_norm,
    attention_bounds,
    attention_outside,
    embed_inputs,
    margins,
    not_covered,
    output,
    read_out,
    stream_after,
)
from interp.models.norm import Norm
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SHAPE: dict[str, Any] = {"d_in": 3, "d_out": 2, "n_ctx": 5, "d_model": 8, "n_heads": 2, "d_head": 3}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lag_bias": "table", "score": "none", "ffn": (6,)},
    {"lag_bias": "lin", "score": "slope", "ffn": (6,), "norm": "layernorm"},
    {"lag_bias": "log", "score": "none", "normalizer": "none", "ffn": (5, 4)},
    {"lag_bias": "bump", "score": "none", "ffn": (6,), "norm": "rmsnorm"},
    {"lag_bias": "relative_keys", "score": "none", "ffn": (6,), "activation": "gelu"},
    {"score": "scalar_gate", "normalizer": "none", "positions": "sinusoidal"},
    {"identity_qk": True, "identity_ov": True, "identity_multiplier": 3.0, "positions": "learned"},
    {"identity_qk": True, "identity_mask_self": True, "mask_self": True, "input_ffn": (4,)},
    {"norm": "layernorm", "norm_gain": False, "norm_final": False, "ffn": (6,)},
    {"residual": False, "causal": False, "ffn": (6,), "input_ffn": (4,)},
]


def model_with(options: dict[str, Any], layers: int, seed: int, size: float = 1.0) -> Any:
    spec = TransformerSpec(**SHAPE | {"input": "real", "n_layers": layers} | options)
    return shaken(spec, seed, size, noise=0.3)


def run(model: Any, x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    model = model.to(dtype)
    with torch.no_grad():
        found = model(torch.from_numpy(x).to(dtype))[:, -1].double().numpy()
    model.float()
    return found


def test_attention_outside_lags_is_not_below_the_exact_sum_of_its_bounds() -> None:
    model, ar = model_with({"d_in": 1, "n_ctx": 64}, 1, 0), Arithmetic("real", budget=0)
    for length in range(8, 64, 5):
        x = embed_inputs(model, box(np.zeros((1, length, 1)), np.ones((length, 1))), ar)
        high = attention_bounds(model, x, 0, ar)[1][0, 1]
        exact = sum(Fraction(float(one)) for at, one in enumerate(high) if at != length - 2)
        assert Fraction(attention_outside(model, length, 0, 1, [1])) >= exact


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o)) or "dot")
def test_boxes_and_points_hold_every_sampled_output(options: dict[str, Any], layers: int) -> None:
    for seed in range(3):
        model = model_with(options, layers, seed, size=(0.6, 1.0, 2.0)[seed])
        rng = np.random.default_rng(seed)
        centre = rng.normal(size=(1, 4, 3)).astype(np.float32).astype(np.float64)
        width = 10.0 ** -rng.integers(1, 4)
        x = centre + width * rng.uniform(-1, 1, size=(64, 4, 3))
        x[:32] = centre + width * rng.choice([-1.0, 1.0], size=(32, 4, 3))
        x = np.clip(x, centre - width, centre + width)
        single = np.float32(x).astype(np.float64)  # may lie a rounding outside the box
        for dtype, rows in (("real", x), ("float32", single)):
            ar = Arithmetic(dtype)
            reach = width if dtype == "real" else width * 1.001 + 1e-6
            low, high = output(model, span(centre - reach, centre + reach, ar), ar).bounds()
            seen = run(model, rows, torch.float64 if dtype == "real" else torch.float32)
            assert (low <= seen + 1e-9 * (dtype == "real")).all()
            assert (seen - 1e-9 * (dtype == "real") <= high).all()
            own = output(model, exactly(rows), Arithmetic(dtype, budget=0))
            low, high = own.bounds()
            assert ((low <= seen + 1e-9) & (seen - 1e-9 <= high)).all()


def test_a_point_is_bounded_to_rounding() -> None:
    model = model_with({"ffn": (6,), "lag_bias": "table", "score": "none"}, 1, 0)
    x = np.random.default_rng(0).normal(size=(5, 4, 3))
    found = output(model, exactly(x), Arithmetic("real", budget=0))
    assert found.deviation.max() < 1e-10
    assert np.abs(found.centre - run(model, x, torch.float64)).max() < 1e-12


def test_margins_are_differences_of_outputs() -> None:
    spec = TransformerSpec(d_in=7, d_out=5, n_ctx=4, d_model=8, n_layers=1, norm="layernorm")
    model = SequenceTransformer(spec, seed=1)
    ids = np.random.default_rng(0).integers(7, size=(6, 4))
    ar = Arithmetic("real", budget=0)
    stream = stream_after(model, embed_inputs(model, ids, ar), ar)
    out = read_out(model, stream, ar).centre
    ahead = margins(model, stream, 2, ar)
    expected = out[:, [2]] - np.delete(out, 2, axis=1)
    assert np.abs(ahead.centre - expected).max() < 1e-12
    assert ahead.deviation.max() < 1e-8


def test_what_is_not_covered_says_why() -> None:
    rope = SequenceTransformer(
        TransformerSpec(d_in=7, d_out=5, n_ctx=4, d_model=8, n_layers=1, positions="rope"), seed=0
    )
    assert not_covered(rope) == "rotary positions are not covered"
    assert "not a transformer" in not_covered(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_norm_of_a_small_cell_is_linear_up_to_second_order(kind: Any) -> None:
    norm = Norm(TransformerSpec(d_in=2, d_out=2, n_ctx=2, d_model=8, n_layers=1, norm=kind))
    centre = np.random.default_rng(0).normal(size=(1, 1, 8))
    slopes = torch.autograd.functional.jacobian(norm.double(), torch.tensor(centre)).numpy()
    linear = np.abs(slopes.reshape(8, 8)).sum(1)
    left = []
    for width in (1e-2, 1e-3):
        ar = Arithmetic("real")
        found = apply_norm(norm, span(centre - width, centre + width, ar), ar)
        left.append(float((found.deviation[0, 0] - width * linear).max()))
    assert 0 < left[0] < 1e-2
    assert left[1] < left[0] / 50
