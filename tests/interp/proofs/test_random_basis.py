"""Hidden models compute the same function, and their mechanism moves along."""

import pytest
import torch
from torch import Tensor

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part
from interp.proofs.random_basis import random_basis

BASE = {"d_in": 7, "d_out": 5, "n_ctx": 9, "d_model": 6, "n_layers": 2, "n_heads": 3, "d_head": 4,
        "ffn": (8,), "dtype": "float64"}  # fmt: skip
VARIANTS: dict[str, dict[str, object]] = {
    "dot": {"causal": False, "mask_self": True},
    "gate": {"score": "scalar_gate", "lag_bias": "lin", "normalizer": "none", "n_layers": 1},
    "slope": {"score": "slope", "lag_bias": "log"},
    "table": {"score": "none", "lag_bias": "table"},
    "relative keys": {"score": "dot", "lag_bias": "relative_keys"},
    "bump": {"score": "none", "lag_bias": "bump"},
    "identity": {"identity_qk": True, "identity_ov": True, "identity_multiplier": 10.0},
    "rope": {"positions": "rope", "n_heads": (3, 2), "d_head": (4, 2)},
    "learned positions": {"positions": "learned"},
    "layernorm": {"norm": "layernorm", "norm_gain": False},
    "layernorm, unit gain": {"norm": "layernorm", "norm_final": False},
    "rmsnorm": {"norm": "rmsnorm", "norm_gain": False},
    "no residual": {"residual": False},
    "attention only": {"ffn": ()},
    "deep": {"ffn": (8, 6, 4), "activation": ("pair_sign", "gelu", "relu")},
    "pairs": {"activation": "pair_sign"},
    "input ffn": {"input_ffn": (10,), "positions": "learned"},
    "uneven": {"n_heads": (3, 1), "d_head": (2, 4), "ffn": ((5, 3), ()), "identity_ov": True},
    "no heads": {"n_heads": (0, 2)},
    "tied": {"d_out": 7, "tied_unembedding": True},
    "real": {"input": "real", "d_in": 2},
    "no layers": {"n_layers": 0},
}


def build(options: dict[str, object]) -> SequenceTransformer:
    """A model with every parameter it uses away from zero."""
    model = SequenceTransformer(TransformerSpec(**{**BASE, **options}), seed=3)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if ".ln" not in name and not name.startswith("ln"):
            noise = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += noise * (parameter != 0 if "attn.W" in name else 1)
    for layer, block in enumerate(model.blocks):
        if block.mlp is not None:
            used = (*model.spec.ffn_widths[layer], 0)[-2 if model.spec.ffn_widths[layer] else 0]
            for surplus in (
                block.mlp.W_in[:, used:],
                block.mlp.b_in[used:],
                block.mlp.W_out[used:],
            ):
                surplus.data.zero_()
        heads, width = model.spec.heads[layer], model.spec.head_widths[layer]
        for key in ("b_Q", "b_K", "b_V"):
            if hasattr(block.attn, key):
                getattr(block.attn, key).data[heads:] = 0
                getattr(block.attn, key).data[:, width:] = 0
        if "relative_keys" in block.attn.terms:
            block.attn.terms["relative_keys"].r.data[..., width:] = 0
    return model


def inputs(spec: TransformerSpec) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    if spec.input == "real":
        return torch.randn(3, 7, spec.d_in, generator=generator, dtype=torch.float64)
    return torch.randint(spec.d_in, (3, 7), generator=generator)


def as_construction(model: SequenceTransformer) -> Construction:
    parts = tuple(Part("head", layer, head, "some", f"{layer}.{head}")
                  for layer, n in enumerate(model.spec.heads) for head in range(n))  # fmt: skip
    axes = {f"axis {i}": axis for i, axis in enumerate(torch.eye(6, dtype=torch.float64))}
    return Construction("m", None, model, Mechanism(parts, axes), Certificate(0.0, {}, "all"))


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_function_roles_and_directions_survive_in_every_kind_of_model(name: str) -> None:
    """Every weight that acts is changed by some seed, but for the unembedding's bias, norms, and
    scalars of layers with one head."""
    old = as_construction(build(VARIANTS[name]))
    new, other = (random_basis(old, seed) for seed in (1, 2))
    x = inputs(old.model.spec)
    seen, cache = old.model.run_with_cache(x)
    seen_hidden, hidden = new.model.run_with_cache(x)
    torch.testing.assert_close(seen_hidden, seen, rtol=1e-10, atol=1e-10)
    for before, after in zip(old.mechanism.parts, new.mechanism.parts, strict=True):
        hook = f"blocks.{before.layer}.attn.hook_pattern"
        a, b = cache[hook][:, before.head], hidden[hook][:, after.head]
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-10)
    last = f"blocks.{old.model.spec.n_layers - 1}.hook_resid_post"
    last = last if old.model.spec.n_layers else "hook_embed"
    for key, axis in old.mechanism.directions.items():
        read = hidden[last] @ new.mechanism.directions[key]
        torch.testing.assert_close(read, cache[last] @ axis, rtol=1e-9, atol=1e-9)
    hidden_weights = [dict(one.model.named_parameters()) for one in (new, other)]
    single = min(old.model.spec.heads, default=0) < 2
    for key, weight in old.model.named_parameters():
        stays = key.endswith("b_U") or "ln" in key or (single and "attn" in key)
        if not (stays or bool((weight == 0).all())):
            assert not all(torch.equal(weights[key], weight) for weights in hidden_weights), key


def test_rotations_are_orthogonal_and_fix_the_ones_under_a_layernorm() -> None:
    directions = random_basis(as_construction(build(VARIANTS["layernorm"])), 3).mechanism.directions
    basis = torch.stack(list(directions.values()))
    torch.testing.assert_close(basis @ basis.T, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(basis.sum(0), torch.ones(6, dtype=torch.float64))
    assert float(basis.diagonal().abs().max()) < 0.99


def test_the_seed_decides() -> None:
    old = as_construction(build({}))
    one, same, other = (random_basis(old, seed).model.W_in for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


def test_what_no_rotation_preserves_is_refused() -> None:
    model = SequenceTransformer(TransformerSpec(**BASE, positions="sinusoidal", norm="rmsnorm"))  # type: ignore[arg-type]
    model.ln_final.w.data[0] = 2  # type: ignore[union-attr]
    with pytest.raises(
        ArgumentError, match=r"positions must not be sinusoidal.*ln_final must have"
    ):
        random_basis(as_construction(model), 0)
