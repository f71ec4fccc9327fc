"""Exported models compute what ours compute, through Hugging Face and TransformerLens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from interp.errors import ArgumentError
from interp.hooks.transformer_lens_adapter import TransformerBridge
from interp.models.export import export_gpt2
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.weights.head_weights import head_weights

BASE = TransformerSpec(
    d_in=9, d_out=9, n_ctx=7, d_model=12, n_layers=2, n_heads=3, d_head=4,
    positions="learned", norm="layernorm",
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "attention only": {},
    "gelu": {"ffn": (10,), "activation": "gelu"},
    "relu, tied": {"ffn": (5,), "tied_unembedding": True},
    "another epsilon": {"norm_eps": 0.1},
    "sines": {"positions": "sinusoidal"},
}


def noisy_model(options: dict[str, Any]) -> SequenceTransformer:
    """A model none of whose parameters is at its initial value."""
    model = SequenceTransformer(TransformerSpec(**{**vars(BASE), **options}), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_a_bridge_gives_the_same_logits_and_patterns(name: str, tmp_path: Path) -> None:
    model = noisy_model(VARIANTS[name])
    folder = export_gpt2(model, tmp_path / "out", bos=0)
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu")
    tokens = torch.randint(0, 9, (4, 7), generator=torch.Generator().manual_seed(0))
    expected, seen = model.run_with_cache(tokens)
    found, got = bridge.run_with_cache(tokens)
    assert torch.allclose(found, expected, atol=2e-5, rtol=1e-5)
    for hook in ("blocks.1.attn.hook_pattern", "blocks.1.attn.hook_z", "blocks.1.hook_resid_post"):
        assert torch.allclose(got[hook], seen[hook], atol=2e-5, rtol=1e-5), hook


@torch.no_grad()
def test_its_factors_are_those_of_the_model(tmp_path: Path) -> None:
    model = noisy_model({})
    factors = head_weights(export_gpt2(model, tmp_path / "out"))
    assert (factors.n_layers, factors.n_heads, factors.d_head) == (2, 3, 4)
    for layer in range(2):
        assert torch.equal(factors.layer(layer).W_Q, model.W_Q[layer])
        assert torch.equal(factors.layer(layer).W_O, model.W_O[layer])


def test_what_gpt2_cannot_express_is_refused_all_at_once(tmp_path: Path) -> None:
    spec = TransformerSpec(
        d_in=9, d_out=8, n_ctx=7, d_model=12, n_layers=2, n_heads=(3, 1), d_head=4, ffn=(4, 4),
        lag_bias="lin", norm="rmsnorm",
    )  # fmt: skip
    with pytest.raises(ArgumentError) as caught:
        export_gpt2(SequenceTransformer(spec), tmp_path / "out", bos=9)
    for option in ("lag_bias", "positions", "norm", "d_out", "n_heads", "ffn", "bos"):
        assert f" {option} must" in str(caught.value) or f"; {option} " in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_logit_bias_the_unembedding_cannot_carry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="b_U must lie in the span"):
        export_gpt2(noisy_model({"d_in": 30, "d_out": 30}), tmp_path / "out")
