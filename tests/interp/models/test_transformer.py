"""The transformer against a slow direct computation, one position and head at a time."""

from math import exp, log1p, sqrt

import pytest
import torch
from plain_transformer import apply_norm
from torch import Tensor

from interp.errors import ArgumentError, HookError
from interp.models.attention.heads import rotate
from interp.models.ffn import activate
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

BASE = {"d_in": 7, "d_out": 5, "n_ctx": 9, "d_model": 6, "n_layers": 2, "n_heads": 3, "d_head": 4,
        "ffn": (8,), "dtype": "float64"}  # fmt: skip

VARIANTS: dict[str, dict[str, object]] = {
    "dot": {},
    "bidirectional": {"causal": False},
    "no softmax": {"normalizer": "none", "lag_bias": "lin", "n_layers": 1},
    "dpf lin": {"score": "none", "lag_bias": "lin"},
    "log bidirectional": {"lag_bias": "log", "causal": False},
    "slope": {"score": "slope", "lag_bias": "log"},
    "gate": {"score": "scalar_gate", "lag_bias": "lin", "normalizer": "none"},
    "table": {"score": "none", "lag_bias": "table"},
    "table bidirectional": {"lag_bias": "table", "causal": False},
    "relative keys": {"score": "none", "lag_bias": "relative_keys"},
    "relative keys bidirectional": {"lag_bias": "relative_keys", "causal": False},
    "bump": {"score": "none", "lag_bias": "bump"},
    "bump bidirectional": {"lag_bias": "bump", "causal": False},
    "identity": {"identity_qk": True, "identity_ov": True, "identity_multiplier": 10.0},
    "identity without own match": {"identity_qk": True, "identity_mask_self": True},
    "mask self": {"mask_self": True},
    "rope": {"positions": "rope"},
    "learned positions": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal"},
    "layernorm": {"norm": "layernorm"},
    "rmsnorm no gain": {"norm": "rmsnorm", "norm_gain": False, "norm_final": False},
    "no residual": {"residual": False},
    "attention only": {"ffn": ()},
    "deep ffn": {"ffn": (8, 6), "activation": ("pair_sign", "gelu")},
    "input ffn": {"input_ffn": (10,), "positions": "learned"},
    "uneven": {"n_heads": (3, 1), "d_head": (2, 4), "ffn": ((5,), ())},
    "tied": {"d_out": 7, "tied_unembedding": True},
    "real": {"input": "real", "d_in": 2},
    "no layers": {"n_layers": 0},
}


def build(name: str) -> SequenceTransformer:
    """A variant with every parameter away from its start, the surplus excepted."""
    model = SequenceTransformer(TransformerSpec(**{**BASE, **VARIANTS[name]}), seed=3)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        if not (parameter == 0).all() or parameter.ndim == 1:
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.data += 0.3 * noise * (parameter.ndim == 1 or parameter != 0)
    for layer, block in enumerate(model.blocks):
        heads, width = model.spec.heads[layer], model.spec.head_widths[layer]
        for key in ("b_Q", "b_K", "b_V"):
            if hasattr(block.attn, key):
                bias = torch.randn(heads, width, generator=generator, dtype=torch.float64)
                getattr(block.attn, key).data[:heads, :width] = bias
        if block.mlp is not None and not model.spec.ffn_widths[layer]:
            for bias in (block.mlp.b_in, block.mlp.b_out):
                bias.data.zero_()
        elif block.mlp is not None:
            block.mlp.b_in.data[model.spec.ffn_widths[layer][-1] :] = 0
    return model


def inputs(model: SequenceTransformer, batch: int = 2, n: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    if model.spec.input == "real":
        return torch.randn(batch, n, model.spec.d_in, generator=generator, dtype=torch.float64)
    return torch.randint(model.spec.d_in, (batch, n), generator=generator)


def turn(x: Tensor, t: int, width: int) -> Tensor:
    out = x.clone()
    for i in range(width // 2):
        angle = torch.tensor(t * 10_000.0 ** (-2 * i / width), dtype=torch.float64)
        a, b = x[i], x[i + width // 2]
        out[i] = a * angle.cos() - b * angle.sin()
        out[i + width // 2] = b * angle.cos() + a * angle.sin()
    return out


def score(model: SequenceTransformer, layer: int, h: int, x: Tensor, t: int, j: int) -> float:
    spec, attn = model.spec, model.blocks[layer].attn
    terms, s, width = attn.terms, t - j, model.spec.head_widths[layer]
    total = 0.0
    if spec.uses_queries:
        q = x[t] @ attn.W_Q[h] + attn.b_Q[h]
    if spec.score == "dot":
        k = x[j] @ attn.W_K[h] + attn.b_K[h]
        if spec.positions == "rope":
            q, k = turn(q, t, width), turn(k, j, width)
        total += float(q @ k) / sqrt(width)
    if spec.identity_qk and not (spec.identity_mask_self and t == j):
        total += spec.identity_multiplier * float(terms["identity"].a[h] * (x[t] @ x[j]))
    if spec.score == "scalar_gate":
        total += float(terms["gate"].w[h] @ x[t])
    if spec.lag_bias in ("lin", "log"):
        slope = abs(float(terms["lag"].p[h]))
        if spec.score == "slope":
            slope += float(terms["lag"].w[h] @ x[t])
        total -= slope * (abs(s) if spec.lag_bias == "lin" else log1p(abs(s)))
    shift = 0 if spec.causal else spec.n_ctx - 1
    if spec.lag_bias == "table":
        total += float(terms["table"].bias[h, s + shift])
    if spec.lag_bias == "relative_keys":
        total += float(q @ terms["relative_keys"].r[h, s + shift]) / sqrt(width)
    if spec.lag_bias == "bump":
        bump = terms["bump"]
        centre = float(bump.c[h] + bump.w[h] @ x[t])
        total += -abs(float(bump.p[h])) * s * s / 2 + centre * s
    return total


def attend(model: SequenceTransformer, layer: int, x: Tensor) -> Tensor:
    spec, attn = model.spec, model.blocks[layer].attn
    out = torch.zeros_like(x) + attn.b_O
    for t in range(len(x)):
        keys = [j for j in range(len(x)) if (j <= t or not spec.causal)
                and not (spec.mask_self and j == t)]  # fmt: skip
        for h in range(spec.heads[layer]):
            weights = [exp(score(model, layer, h, x, t, j)) for j in keys]
            total = sum(weights) if spec.normalizer == "softmax" else 1.0
            for weight, j in zip(weights, keys, strict=True):
                value = (x[j] @ attn.W_V[h] + attn.b_V[h]) @ attn.W_O[h]
                if spec.identity_ov:
                    value = value + spec.identity_multiplier * attn.b[h] * x[j]
                out[t] += weight / total * value
    return out


def ffn(model: SequenceTransformer, module: torch.nn.Module, x: Tensor) -> Tensor:
    for i, hidden in enumerate(module.hidden):
        x = activate(model.spec.activation_of(i), x @ hidden.W + hidden.b)
    x = x @ module.W_in + module.b_in
    return activate(module.kind, x) @ module.W_out + module.b_out


def direct(model: SequenceTransformer, row: Tensor) -> Tensor:
    spec = model.spec
    x = row @ model.W_E if spec.input == "real" else model.W_E[row]
    if model.pos_embed is not None:
        x = x + model.W_pos[: len(x)]
    if model.input_ffn is not None:
        x = x * spec.residual + ffn(model, model.input_ffn, x)
    for layer, block in enumerate(model.blocks):
        read = apply_norm(block.ln1, spec, x)
        x = x * spec.residual + attend(model, layer, read)
        if block.mlp is not None:
            x = x * spec.residual + ffn(model, block.mlp, apply_norm(block.ln2, spec, x))
    x = apply_norm(model.ln_final, spec, x, spec.norm_final)
    return x @ model.W_U + model.b_U


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_forward_equals_the_direct_computation(name: str) -> None:
    model = build(name)
    batch = inputs(model)
    expected = torch.stack([direct(model, row) for row in batch])
    torch.testing.assert_close(model(batch), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_scores_are_the_sum_of_their_terms_and_runs_stop_at_layers(name: str) -> None:
    model = build(name)
    batch = inputs(model)
    output, cache = model.run_with_cache(batch)
    torch.testing.assert_close(output, model.unembed(cache["ln_final.hook_normalized"]))
    for layer in range(model.spec.n_layers):
        at = f"blocks.{layer}."
        terms = [v for k, v in cache.items() if k.startswith(at) and k.endswith("hook_score")]
        scores = cache[at + "attn.hook_attn_scores"]
        finite = scores.isfinite()
        torch.testing.assert_close(scores[finite], sum(terms).expand_as(scores)[finite])
        stopped = model(batch, stop_at_layer=layer + 1)
        torch.testing.assert_close(stopped, cache[at + "hook_resid_post"])


@pytest.mark.parametrize("name", VARIANTS)
def test_surplus_weights_stay_zero_under_training(name: str) -> None:
    model = build(name)
    batch = inputs(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
    for layer, block in enumerate(model.blocks):
        heads, width = model.spec.heads[layer], model.spec.head_widths[layer]
        assert not block.attn.W_V[heads:].any()
        assert not block.attn.W_V[..., width:].any()
        assert not block.attn.W_O[heads:].any()
        if block.mlp is not None and not model.spec.ffn_widths[layer]:
            assert not block.mlp.b_out.any()
            assert not block.mlp.W_out.any()


def test_gradients_are_finite_where_a_query_sees_nothing() -> None:
    model = build("mask self")
    model(inputs(model)).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@torch.no_grad()
def test_splitting_the_inputs_changes_nothing() -> None:
    for name in ("identity", "gate", "bump", "layernorm"):
        model = build(name)
        batch = inputs(model)
        expected = model(batch)
        model.set_use_split_qkv_input(True)
        model.set_use_hook_mlp_in(True)
        output, cache = model.run_with_cache(batch)
        torch.testing.assert_close(output, expected)
        assert cache["blocks.1.attn.hook_k_input"].shape == (2, 6, 3, 6)
        torch.testing.assert_close(cache["blocks.0.hook_mlp_in"], cache["blocks.0.hook_resid_mid"])


@torch.no_grad()
def test_patching_a_run_with_its_own_cache_changes_nothing() -> None:
    model = build("identity")
    batch = inputs(model)
    output, cache = model.run_with_cache(batch)
    for name in cache:
        patched = model.run_with_hooks(batch, fwd_hooks=[(name, lambda x, hook: cache[hook.name])])
        torch.testing.assert_close(patched, output, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm no gain"])
def test_training_norms_at_once_and_is_watched_part_by_part(name: str) -> None:
    model = build(name)
    batch = inputs(model)
    parts, of_parts = _output_and_gradients(model, batch)
    at_once, of_once = _output_and_gradients(model.train(), batch)
    torch.testing.assert_close(at_once, parts, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(of_once, of_parts, rtol=1e-8, atol=1e-10)
    _, cache = model.run_with_cache(batch)
    assert {"blocks.0.ln1.hook_scale", "blocks.0.ln1.hook_normalized"} <= set(cache)


def _output_and_gradients(model: SequenceTransformer, batch: Tensor) -> tuple[Tensor, list]:
    output = model(batch)
    gradients = torch.autograd.grad(output.square().sum(), list(model.parameters()))
    return output, list(gradients)


def test_same_seed_same_weights() -> None:
    spec = TransformerSpec(**BASE)  # type: ignore[arg-type]
    first, second, other = (SequenceTransformer(spec, seed=s) for s in (1, 1, 2))
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not torch.equal(first.W_E, other.W_E)


@torch.no_grad()
def test_positions_are_sliced_along_the_right_axis() -> None:
    model = build("identity")
    batch = inputs(model)
    _, whole = model.run_with_cache(batch)
    _, last = model.run_with_cache(batch, pos_slice=-1)
    _, chosen = model.run_with_cache(batch, pos_slice=[0, 3])
    _, stretch = model.run_with_cache(batch, pos_slice=(1, 4))
    for name, value in last.items():
        axis = (
            whole[name].ndim - 2
            if whole[name].ndim == 3 or "score" in name or "pattern" in name
            else 1
        )
        torch.testing.assert_close(value, whole[name].narrow(axis, 5, 1))
        two = whole[name].index_select(axis, torch.tensor([0, 3]))
        torch.testing.assert_close(chosen[name], two)
        torch.testing.assert_close(stretch[name], whole[name].narrow(axis, 1, 3))


@torch.no_grad()
@pytest.mark.parametrize(
    "hook", ["attn.hook_q_input", "attn.hook_k_input", "attn.hook_v_input", "hook_mlp_in"]
)
def test_a_hook_that_edits_in_place_reaches_its_own_reader_alone(hook: str) -> None:
    model = build("dot")
    batch = inputs(model)
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)

    def in_place(x: Tensor, hook: object) -> Tensor:
        x[:, :, 1] = 0
        return x

    def edit_copy(x: Tensor, hook: object) -> Tensor:
        return in_place(x.clone(), hook)

    name = f"blocks.0.{hook}"
    torch.testing.assert_close(
        model.run_with_hooks(batch, fwd_hooks=[(name, in_place)]),
        model.run_with_hooks(batch, fwd_hooks=[(name, edit_copy)]),
    )


@torch.no_grad()
def test_a_hook_on_the_positions_does_not_reach_the_parameter() -> None:
    model = build("learned positions")
    before = model.W_pos.clone()
    model.run_with_hooks(
        inputs(model, batch=1), fwd_hooks=[("hook_pos_embed", lambda x, hook: x.zero_())]
    )
    assert torch.equal(model.W_pos, before)


def test_configuration_follows_device_and_dtype() -> None:
    model = build("dot")
    assert model.float().cfg.dtype == torch.float32
    assert model.to("meta").cfg.device == "meta"


def test_rotation_is_exact_far_out_in_half_precision() -> None:
    x = torch.ones(1, 700, 1, 2, dtype=torch.bfloat16)
    exact = rotate(x.double(), 2)
    torch.testing.assert_close(rotate(x, 2).double(), exact, rtol=0, atol=0.02)


def test_hooks_that_do_not_fire_and_weights_that_are_absent_are_errors() -> None:
    model = build("dpf lin")
    batch = inputs(model)
    with pytest.raises(HookError, match=r"did not fire.*set_use_split_qkv_input"):
        model.run_with_cache(batch, names_filter="blocks.0.attn.hook_q_input")
    with pytest.raises(HookError, match="did not fire"):
        model.run_with_hooks(
            batch, fwd_hooks=[("blocks.0.attn.hook_q_input", lambda x, hook: 0 * x)]
        )
    with pytest.raises(AttributeError, match="no W_Q"):
        _ = model.W_Q
    assert not hasattr(model, "W_pos")


def test_wrong_inputs_are_refused() -> None:
    model = build("dot")
    with pytest.raises(ArgumentError, match="must be token ids"):
        model(torch.zeros(2, 3))
    with pytest.raises(ArgumentError, match="at most n_ctx = 9 positions, got 10"):
        model(torch.zeros(2, 10, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"must be real \[batch, pos, 2\]"):
        build("real")(torch.zeros(2, 3, 4))


def test_real_inputs_are_taken_in_the_models_dtype() -> None:
    model = build("real")
    batch = inputs(model).float()
    assert torch.equal(model(batch), model(batch.double()))


def test_pair_sign_is_exact_at_any_size() -> None:
    z = torch.tensor([1e-300, -1e-12, 3.0, -1e200, 0.0], dtype=torch.float64)
    pairs = torch.stack((z, -z), dim=-1).flatten()
    expected = torch.stack((z.sign(), -z.sign()), dim=-1).flatten()
    assert torch.equal(activate("pair_sign", pairs), expected)
