"""float32 at its limits: softmax of low accuracy, squares and exponentials that overflow."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.bounds.affine import Affine, Arithmetic, exactly, fresh
from interp.bounds.attention import pattern
from interp.bounds.network import output
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


def float32_bounds(model: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least and largest output in float32, and what was seen."""
    with np.errstate(all="ignore"):
        low, high = output(model, exactly(x), Arithmetic("float32", budget=0)).bounds()
    with torch.no_grad():
        seen = model(torch.tensor(x, dtype=torch.float32))[:, -1].double().numpy()
    return low, high, seen


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
        low, high, seen = float32_bounds(model, x.astype(np.float64))
        inside = (low <= seen) & (seen <= high)
        assert (inside | ~np.isfinite(high - low)).all()


def test_a_masked_score_that_overflows_makes_a_row_no_number() -> None:
    spec = TransformerSpec(
        d_in=2, d_out=1, n_ctx=2, d_model=2, n_layers=2, n_heads=1, d_head=2, input="real"
    )
    model: Any = SequenceTransformer(spec, seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E.copy_(torch.eye(2))
        first, second = (block.attn for block in model.blocks)
        first.W_Q[0, 0, 0], first.W_K[0, 1, 0] = 1e20, 1e20  # query 0 with the future key 1
        second.W_V[0], second.W_O[0] = torch.eye(2), torch.eye(2)
        model.unembed.W_U.fill_(1.0)
    low, high, seen = float32_bounds(model, np.array([[[1.0, 0.0], [0.0, 1.0]]]))
    assert np.isnan(seen).all()
    assert not np.isfinite(high - low).any()


@pytest.mark.parametrize("eps", [1e-5, 1e-50])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_an_epsilon_that_vanishes_in_float32_does_not_help(norm: Any, eps: float) -> None:
    spec = TransformerSpec(
        d_in=1, d_out=1, n_ctx=1, d_model=4, n_layers=0, norm=norm, norm_eps=eps, input="real"
    )
    model: Any = SequenceTransformer(spec, seed=1)
    for x in (0.0, 1e-30):  # no variance, and squares that underflow
        low, high, seen = float32_bounds(model, np.full((1, 1, 1), x))
        inside = (low <= seen) & (seen <= high)
        assert (inside | ~np.isfinite(high - low)).all()
        assert inside.all() == (eps == 1e-5)


def test_noise_that_is_not_known_in_one_cell_is_kept_in_the_others() -> None:
    found = fresh(exactly(np.zeros((2, 1))), np.array([[np.nan], [1.0]]), Arithmetic("real"))
    assert found.deviation[1, 0] >= 1
    assert found.deviation[0, 0] == np.inf


def test_what_is_not_known_at_a_masked_key_makes_the_row_unknown() -> None:
    radius = np.zeros((1, 1, 2, 2))
    radius[..., 0, 1] = np.inf
    scores = Affine(np.zeros(radius.shape), np.zeros((0, *radius.shape)), radius)
    allowed = np.tril(np.ones((2, 2), dtype=bool))
    for softmax in (True, False):
        _, high = pattern(scores, allowed, softmax, Arithmetic("float32"))
        assert np.isinf(high[0, 0, 0, 0])
        assert np.isfinite(high[0, 0, 1]).all()
