"""Baselines against PyTorch's own modules and direct loops."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from interp.errors import ArgumentError, HookError
from interp.models.baselines import BaselineSpec, LSTMSpec, MLPSpec, RNNSpec
from interp.models.checkpoint import load_checkpoint, read_metadata, save_checkpoint
from interp.models.kinds import build, spec_from_dict

SIZES: dict[str, Any] = {"d_in": 5, "d_out": 3, "n_ctx": 6, "dtype": "float64"}
SPECS: list[BaselineSpec] = [
    MLPSpec(**SIZES, hidden=(7, 4), pairs="whole"),
    MLPSpec(**SIZES, hidden=(), d_embed=4),
    RNNSpec(**SIZES, d_hidden=4, n_layers=2),
    RNNSpec(**SIZES, d_hidden=4, activation="linear", input="real", d_embed=2),
    LSTMSpec(**SIZES, d_hidden=4, n_layers=2, input="real"),
]


def inputs_for(spec: BaselineSpec, rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if spec.input == "tokens":
        return torch.randint(spec.d_in, (rows, spec.n_ctx), generator=generator)
    return torch.randn(rows, spec.n_ctx, spec.d_in, generator=generator)


def copy_into(theirs: nn.Module, ours: Any) -> None:
    """Our layers' weights into ``nn.RNN`` or ``nn.LSTM``."""
    for i, layer in enumerate(ours.layers):
        getattr(theirs, f"weight_ih_l{i}").data = layer.W.data.T
        getattr(theirs, f"weight_hh_l{i}").data = layer.U.data.T
        getattr(theirs, f"bias_ih_l{i}").data = layer.b.data
        getattr(theirs, f"bias_hh_l{i}").data = torch.zeros_like(layer.b)


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_recurrent_networks_are_pytorchs(kind: str) -> None:
    spec = {"rnn": RNNSpec, "lstm": LSTMSpec}[kind](**SIZES, d_hidden=4, n_layers=2)
    model, inputs = build(spec, seed=1), inputs_for(spec)
    theirs = {"rnn": nn.RNN, "lstm": nn.LSTM}[kind](5, 4, 2, batch_first=True).double()
    copy_into(theirs, model)
    states, last = theirs(torch.eye(5, dtype=torch.float64)[inputs])
    output, cache = model.run_with_cache(inputs)
    torch.testing.assert_close(cache["layers.1.hook_state"], states)
    torch.testing.assert_close(output, states @ model.W_U + model.b_U)
    if kind == "lstm":
        torch.testing.assert_close(cache["layers.1.hook_cell"][:, -1], last[1][1])


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_uniform_weights_start_as_pytorchs_do(kind: str) -> None:
    spec = {"rnn": RNNSpec, "lstm": LSTMSpec}[kind](**SIZES, d_hidden=64, initial="uniform")
    theirs = {"rnn": nn.RNN, "lstm": nn.LSTM}[kind](5, 64)
    layer = build(spec, seed=3).layers[0]
    for name, ours in (
        ("weight_ih_l0", layer.W),
        ("weight_hh_l0", layer.U),
        ("bias_ih_l0", layer.b),
    ):
        expected = getattr(theirs, name).detach().double()
        assert ours.numel() == expected.numel()
        assert ours.abs().max() <= expected.new_tensor(64**-0.5)
        torch.testing.assert_close(ours.std().detach(), expected.std(), rtol=0.25, atol=0.0)


def test_a_linear_network_is_a_sum_over_the_past() -> None:
    spec = RNNSpec(**SIZES, d_hidden=4, activation="linear", input="real")
    model, x = build(spec, seed=2), inputs_for(spec).double()
    layer = model.layers[0]
    expected = torch.zeros(3, 6, 3, dtype=torch.float64)
    for t in range(6):
        for lag in range(t + 1):
            power = torch.linalg.matrix_power(layer.U, lag)
            expected[:, t] += (x[:, t - lag] @ layer.W + layer.b) @ power @ model.W_U
    torch.testing.assert_close(model(inputs_for(spec)), expected + model.b_U)


@pytest.mark.parametrize("pairs", ["none", "whole", "masked"])
def test_mlp_reads_the_row_and_its_equalities(pairs: Any) -> None:
    spec = MLPSpec(**SIZES, hidden=(7,), activation="gelu", pairs=pairs)
    model, inputs = build(spec, seed=1), inputs_for(spec)
    output, cache = model.run_with_cache(inputs)
    for row, tokens in enumerate(inputs.tolist()):
        features = [float(token == symbol) for token in tokens for symbol in range(5)]
        for i, one in enumerate(tokens):
            for j, two in enumerate(tokens):
                if pairs != "none":
                    features.append(float(one == two and not (pairs == "masked" and i == j)))
        found = torch.tensor(features, dtype=torch.float64)
        assert torch.equal(cache["hook_features"][row], found)
        hidden = nn.functional.gelu(found @ model.hidden[0].W + model.hidden[0].b)
        torch.testing.assert_close(output[row, -1], hidden @ model.W_U + model.b_U)
    assert torch.equal(output[:, :1].expand(-1, 6, -1), output)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.kind}-{s.input}-{s.d_embed}")
def test_specs_and_weights_survive_the_disk(spec: BaselineSpec, tmp_path: Path) -> None:
    assert spec_from_dict(spec.to_dict()) == spec
    model = build(spec, seed=4)
    again = load_checkpoint(save_checkpoint(model, tmp_path / "m"))
    assert type(again) is type(model)
    assert again.spec == spec
    assert read_metadata(tmp_path / "m")["spec"]["kind"] == spec.kind
    inputs = inputs_for(spec)
    assert torch.equal(again(inputs), model(inputs))
    assert not torch.equal(build(spec, seed=5)(inputs), model(inputs))
    assert all(p.grad_fn is None and p.requires_grad for p in model.parameters())


def test_hooks_change_what_is_read_above() -> None:
    spec = SPECS[2]
    model, inputs = build(spec), inputs_for(spec)
    zeroed = model.run_with_hooks(
        inputs, fwd_hooks=[("layers.1.hook_state", lambda t, hook: 0 * t)]
    )
    torch.testing.assert_close(zeroed, model.b_U.expand_as(zeroed))
    with pytest.raises(HookError, match="has no hook"):
        model.run_with_cache(inputs, names_filter="layers.9.hook_state")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLPSpec(**SIZES, hidden=(0,)), r"hidden must be at least 1, got \(0,\)"),
        (
            lambda: MLPSpec.from_dict({**SIZES, "pairs": "all"}),
            "pairs must be one of none, whole, masked",
        ),
        (lambda: RNNSpec(**{**SIZES, "d_in": 0}, d_hidden=-1), "d_in must be.*d_hidden must be"),
        (lambda: RNNSpec.from_dict({"d_in": 1, "width": 2}), "width must be a known.*d_out must"),
        (lambda: spec_from_dict({"kind": "gru"}), "kind must be one of transformer, mlp, rnn"),
        (lambda: build({"d_in": 1}), "spec must be the spec of one of"),
        (lambda: build(SPECS[0])(torch.zeros(2, 5, dtype=torch.long)), "must have exactly n_ctx"),
        (lambda: build(SPECS[2])(torch.zeros(2, 7, dtype=torch.long)), "must have at most n_ctx"),
        (lambda: build(SPECS[2])(torch.zeros(2, 6)), "must be token ids"),
        (lambda: build(SPECS[4])(torch.zeros(2, 6, 4)), r"must be real \[batch, pos, 5\]"),
    ],
)
def test_what_does_not_fit_is_named(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
