"""HeadWeights of a model in memory against those of its checkpoint: equal, tensor by tensor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pandas.testing import assert_frame_equal
from same_head_weights import assert_same
from torch import nn

from interp.errors import ArgumentError, CheckpointError
from interp.models.baselines import LSTMSpec
from interp.models.checkpoint import save_checkpoint
from interp.models.kinds import build
from interp.models.spec import TransformerSpec
from interp.weights.head_weights import head_weights
from interp.weights.weight_table import weight_table
from trained import zoo

SIZES: dict[str, Any] = {"d_in": 7, "d_out": 7, "n_ctx": 6, "d_model": 6, "n_layers": 2,
                         "n_heads": 2, "d_head": 3, "input": "tokens"}  # fmt: skip
OURS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads of unequal width": {"n_heads": (1, 3), "d_head": (2, 4)},
    "a layer without heads": {"n_heads": (0, 2)},
    "identity": {"identity_qk": True, "identity_ov": True, "identity_multiplier": 10.0},
    "identity alone": {"score": "none", "identity_qk": True, "lag_bias": "lin"},
    "no dot product": {"score": "none", "lag_bias": "table"},
    "layernorm": {"norm": "layernorm", "ffn": (5,)},
    "rmsnorm without gain": {"norm": "rmsnorm", "norm_gain": False},
    "rotary": {"positions": "rope", "d_head": 4, "norm": "rmsnorm"},
    "learned positions, tied": {"positions": "learned", "tied_unembedding": True},
    "real input": {"input": "real"},
    "double": {"dtype": "float64", "ffn": ((4,), (6,))},
}


def randomise(model: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data = drawn.to(parameter.dtype)
    return model


@pytest.mark.parametrize("options", OURS.values(), ids=list(OURS))
def test_ours_are_those_of_the_checkpoint(options: dict[str, Any], tmp_path: Path) -> None:
    model = randomise(build(TransformerSpec(**{**SIZES, **options})))
    saved = head_weights(save_checkpoint(model, tmp_path / "saved"))
    assert_same(head_weights(model), saved)


def test_tables_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    model = zoo.load("induction-mlp").model
    saved = head_weights(save_checkpoint(model, tmp_path / "saved"))
    live = head_weights(model)
    for metrics, options in (
        (["basic", "composition"], {"fold_norm": True}),
        (["copying_score"], {"basis": "token", "draws": 5}),
    ):
        found, wanted = (weight_table(f, metrics, **options) for f in (live, saved))
        assert_frame_equal(found, wanted)
        assert len(found)


def test_weights_are_seen_as_they_are_now_and_never_changed() -> None:
    model = build(TransformerSpec(**SIZES))
    factors = head_weights(model)
    before = factors.layer(0).W_Q
    kept = before.clone()
    with torch.no_grad():
        model.blocks[0].attn.W_Q += 1
    assert torch.equal(before, kept)
    assert torch.equal(factors.layer(0).W_Q, model.blocks[0].attn.W_Q)
    factors.layer(0).W_Q.zero_()
    assert float(model.blocks[0].attn.W_Q.detach().abs().sum()) > 0


def test_what_has_no_heads_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"Linear: there is no config.*bias, weight"):
        head_weights(nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="holds no weights"):
        head_weights(nn.ReLU())
    with pytest.raises(ArgumentError, match="model must be a path, a hub id or a module, got 3"):
        head_weights(3)


def test_models_without_heads_are_refused_alive_and_saved(tmp_path: Path) -> None:
    model = build(LSTMSpec(d_in=3, d_out=2, n_ctx=4, d_hidden=5))
    for source in (model, save_checkpoint(model, tmp_path / "saved")):
        with pytest.raises(CheckpointError, match="kind 'lstm' has no heads: give a transformer"):
            head_weights(source)


def test_a_mapping_opens_any_module() -> None:
    module = nn.MultiheadAttention(6, 2)
    stacked = {"name": "in_proj_weight", "pattern": "(p h k) d -> p h d k"}
    grouped = {**stacked, "pattern": "(p g k) d -> p g d k"}
    layers = nn.ModuleList([module])
    at = "{layer}."
    mapping = {
        "n_layers": 1, "n_heads": 2, "d_model": 6, "d_head": 3,
        "W_Q": {**stacked, "name": at + "in_proj_weight", "pick": 0},
        "W_K": {**grouped, "name": at + "in_proj_weight", "pick": 1},
        "W_V": {**grouped, "name": at + "in_proj_weight", "pick": 2},
        "W_O": {"name": at + "out_proj.weight", "pattern": "d (h k) -> h k d"},
    }  # fmt: skip
    found = head_weights(layers, mapping=mapping).layer(0)
    assert torch.equal(found.W_K[1], module.in_proj_weight.detach()[9:12].T)


def test_weights_that_are_not_finite_are_named() -> None:
    model = build(TransformerSpec(**SIZES))
    with torch.no_grad():
        model.blocks[1].attn.W_V[0, 0, 0] = torch.nan
    with pytest.raises(CheckpointError, match=r"blocks\.1\.attn\.W_V.*the model has 1 values"):
        _ = head_weights(model).layer(1).W_V
