"""Scores that no token enters are computed once; who looks still sees every row."""

from typing import Any

import pytest
import torch

from interp.models.kinds import build
from interp.models.spec import TransformerSpec

PATTERN = "blocks.0.attn.hook_pattern"
HOOKS = [PATTERN, "blocks.0.attn.hook_attn_scores"]


def model_of(**changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "input": "real", "d_in": 2, "d_out": 1, "n_ctx": 7, "d_model": 6, "n_layers": 1,
        "n_heads": 3, "d_head": 2, "ffn": (5,), "score": "none",
    }  # fmt: skip
    return build(TransformerSpec(**{**sizes, **changes}), seed=3)


@pytest.mark.parametrize(
    "changes",
    [
        {"lag_bias": "none"},
        {"lag_bias": "lin"},
        {"lag_bias": "log", "normalizer": "none"},
        {"lag_bias": "table", "mask_self": True},
        {"lag_bias": "lin", "score": "dot"},
        {"lag_bias": "lin", "identity_ov": True},
    ],
    ids=str,
)
def test_output_and_gradients_are_those_of_a_model_that_is_watched(changes: Any) -> None:
    model, inputs = model_of(**changes), torch.randn(4, 7, 2)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    parameters = list(model.parameters())
    plain = model(inputs)
    watched = model.run_with_hooks(inputs, fwd_hooks=[(h, lambda value, hook: None) for h in HOOKS])
    assert torch.allclose(plain, watched, atol=1e-6)
    ways = [
        torch.autograd.grad(output.square().sum(), parameters, materialize_grads=True)
        for output in (plain, watched)
    ]
    for mine, theirs in zip(*ways, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("lag_bias", ["none", "lin"])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_sees_every_row_and_may_change_one_in_place(lag_bias: Any, name: str) -> None:
    model, inputs = model_of(lag_bias=lag_bias), torch.randn(4, 7, 2)
    _, cache = model.run_with_cache(inputs)
    assert cache[name].shape == (4, 3, 7, 7)

    def change(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value[2, :, 5] = value[2, :, 5].flip(-1)
        return value

    before, after = model(inputs), model.run_with_hooks(inputs, fwd_hooks=[(name, change)])
    same = torch.isclose(before, after, atol=1e-6)[..., 0]
    assert not same[2, 5]
    same[2, 5] = True
    assert same.all()
    after.sum().backward()


def test_a_hook_of_pytorch_sees_every_row_too() -> None:
    model, seen = model_of(lag_bias="table"), []
    model.get_submodule(PATTERN).register_forward_hook(lambda *values: seen.append(values[-1]))
    model(torch.randn(4, 7, 2))
    assert seen[0].shape == (4, 3, 7, 7)
