"""float32 at its limits: softmax of low accuracy, squares and exponentials that overflow."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.bounds.affine import exactly
from interp.bounds.attention import pattern
from interp.bounds.network import output
from interp.bounds.rounding import Arithmetic
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([1.0, 8.0, 30.0, 60.0]), st.integers(2, 40))
def test_torch_softmax_in_float32_stays_inside(seed: int, size: float, n: int) -> None:
    scores = np.float32(np.random.default_rng(seed).normal(size=(64, 1, 1, n)) * size)
    allowed = np.ones((1, n), dtype=bool)
    low, high = pattern(exactly(scores.astype(np.float64)), allowed, True, Arithmetic("float32"))
    seen = torch.from_numpy(scores).softmax(-1).double().numpy()
    assert (low <= seen).all()
    assert (seen <= high).all()
    real_low, real_high = pattern(
        exactly(scores.astype(np.float64)), allowed, True, Arithmetic("real")
    )
    exact = torch.from_numpy(scores).double().softmax(-1).numpy()
    assert (real_low <= exact).all()
    assert (exact <= real_high).all()
    assert (real_high - real_low <= 1e-12).all()


def test_an_exponential_beyond_float32_has_no_bound_there() -> None:
    scores = exactly(np.array([[[[95.0, 0.0]]]]))
    allowed = np.ones((1, 2), dtype=bool)
    _, high = pattern(scores, allowed, False, Arithmetic("float32"))
    assert np.isinf(high[0, 0, 0, 0])
    assert np.isfinite(high[0, 0, 0, 1])
    _, high = pattern(scores, allowed, False, Arithmetic("real"))
    assert np.isfinite(high).all()


LIMITS: list[dict[str, Any]] = [
    {"norm": "rmsnorm", "ffn": (4,)},
    {"norm": "layernorm", "ffn": (4,)},
    {"normalizer": "none", "score": "none", "lag_bias": "lin", "ffn": (4,)},
    {"ffn": (4,), "activation": "gelu"},
    {"identity_qk": True, "identity_ov": True},
]


@pytest.mark.parametrize("options", LIMITS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e18, 1e25])
def test_float32_evaluation_is_inside_or_has_no_bound(options: dict[str, Any], size: float) -> None:
    spec = TransformerSpec(
        **{"d_in": 2, "d_out": 2, "n_ctx": 3, "d_model": 5, "n_layers": 1, "n_heads": 1}
        | {"d_head": 3, "input": "real"}
        | options
    )
    for seed in range(4):
        model: Any = SequenceTransformer(spec, seed=seed)
        with torch.no_grad():
            for part in (model.embed, model.blocks[0].attn, model.unembed)[seed % 3 :][:1]:
                for weight in part.parameters():
                    weight.mul_(size)
        x = np.float32(np.random.default_rng(seed).normal(size=(8, 3, 2)))
        with np.errstate(all="ignore"):
            form = output(model, exactly(x.astype(np.float64)), Arithmetic("float32", budget=0))
            low, high = form.bounds()
        with torch.no_grad():
            seen = model(torch.from_numpy(x))[:, -1].double().numpy()
        inside = (low <= seen) & (seen <= high)
        assert (inside | ~np.isfinite(high - low)).all()
