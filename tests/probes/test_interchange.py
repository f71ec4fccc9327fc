"""Exchanging what a probe reads: a direction that is used, and one that is decodable and not."""

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from probes.interchange import (
    INTERCHANGE_COLUMNS,
    _moves,
    _random_basis,
    _span,
    interchange,
    interchange_table,
    probe_directions,
)
from probes.linear import logistic

SPEC = TransformerSpec(
    d_in=2, d_out=1, input="real", n_ctx=6, d_model=4, n_layers=1, n_heads=1, d_head=4, ffn=(8,),
    normalizer="softmax", dtype="float64",
)  # fmt: skip
SITE = "blocks.0.hook_resid_post"
HOOKS = {"a": SITE, "sign": SITE, "shadow": SITE, "side": SITE}


@pytest.fixture(scope="module")
def model() -> SequenceTransformer:
    """y = a = |x_1|, written by the FFN into channel 2 and read from there; x_2 is carried along in
    channel 1 and read by nobody."""
    model = SequenceTransformer(SPEC, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[0, 0] = model.embed.W_E[1, 1] = 1.0
        mlp = model.blocks[0].mlp
        mlp.W_in[0, 0], mlp.W_in[0, 1] = 1.0, -1.0
        mlp.W_out[0, 2] = mlp.W_out[1, 2] = 1.0
        model.unembed.W_U[2, 0] = 1.0
    return model


@pytest.fixture(scope="module")
def batch() -> Batch:
    """``a`` is the answer, ``sign`` whether it is large; ``shadow`` is x_2, ``side`` its sign."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn((160, 6, 2), generator=generator, dtype=torch.float64)
    a, shadow = x[..., 0].abs(), x[..., 1]
    latents = {"a": a, "sign": a > 1.4, "shadow": shadow, "side": shadow > 0}
    return Batch(x, a[..., None], torch.ones(160, 6, dtype=torch.bool), latents)


def test_interchange_moves_the_output_along_the_used_direction_only(
    model: SequenceTransformer, batch: Batch
) -> None:
    base, source, expected = batch.inputs[:60], batch.inputs[60:120], batch.targets[60:120, 4]
    used, shadow = torch.eye(4, dtype=torch.float64)[[2]], torch.eye(4, dtype=torch.float64)[[1]]
    found = interchange(model, SITE, used, base, source, expected, 4)
    assert found.moved == pytest.approx(1, abs=1e-6)
    assert found.changed == pytest.approx(1, abs=1e-6)
    assert found.low > 0.2
    assert found.p < 1e-4
    assert found.placebo < 0.7
    unused = interchange(model, SITE, shadow, base, source, expected, 4)
    assert unused.moved == pytest.approx(0)
    assert unused.changed == pytest.approx(0)
    assert unused.placebo_changed > 0.01


def test_each_pair_may_have_its_own_positions(model: SequenceTransformer, batch: Batch) -> None:
    at = torch.randint(6, (300,), generator=torch.Generator().manual_seed(1))
    taken = (at + 1) % 6
    base, source = batch.inputs.repeat(2, 1, 1)[:300], batch.inputs.roll(1, 0).repeat(2, 1, 1)[:300]
    expected = source[torch.arange(300), taken, 0].abs()[:, None]
    used = torch.eye(4, dtype=torch.float64)[[2]]
    found = interchange(model, SITE, used, base, source, expected, at, source_position=taken)
    assert found.moved == pytest.approx(1, abs=1e-6)
    wrong = interchange(model, SITE, used, base, source, expected, at)
    assert wrong.moved < 0.5


def test_directions_that_depend_on_others_add_nothing(
    model: SequenceTransformer, batch: Batch
) -> None:
    """Weights of three classes sum to zero: their span has two dimensions, not three."""
    base, source, expected = batch.inputs[:60], batch.inputs[60:120], batch.targets[60:120, 4]
    rows = torch.tensor([[0, 1.0, 0, 0], [1.0, 0, 0, 0], [-1.0, -1.0, 0, 0]], dtype=torch.float64)
    assert interchange(model, SITE, rows, base, source, expected, 4).moved == pytest.approx(0)


def test_the_table_tells_what_is_used_from_what_is_only_decodable(
    model: SequenceTransformer, batch: Batch
) -> None:
    table = interchange_table(model, batch, HOOKS)
    assert tuple(table.columns) == INTERCHANGE_COLUMNS
    found = table.set_index("latent")
    assert found["kind"].tolist() == ["real", "categorical", "real", "categorical"]
    assert found.loc["a", "moved"] == pytest.approx(1, abs=0.02)
    assert found.loc["sign", "moved"] > 0.9  # its direction is that of a
    assert (found.loc[["a", "sign"], "q"] < 1e-3).all()
    assert (found.loc[["a", "sign"], "low"] > 0.2).all()
    assert (found.loc[["shadow", "side"], "changed"] < 0.01).all()
    assert (found.loc[["shadow", "side"], "moved"].abs() < 0.05).all()
    assert (found.loc[["shadow", "side"], "q"] > 0.01).all()
    assert (found["pairs"] > 60).all()


def test_a_latent_of_one_value_has_no_pairs(model: SequenceTransformer, batch: Batch) -> None:
    latents = {"one": torch.ones(160, 6, dtype=torch.float64)}
    one = Batch(batch.inputs, batch.targets, batch.mask, latents)
    (row,) = interchange_table(model, one, {"one": SITE}).to_dict("records")
    assert row["pairs"] == 0
    assert np.isnan(row["moved"])


def test_directions_of_classes_are_in_units_of_the_activations() -> None:
    """Scaling a feature scales its weight by the inverse, and the decision is the same."""
    rng = np.random.default_rng(0)
    latent = rng.integers(0, 2, (80, 5)).astype(float)
    x = rng.normal(size=(80, 5, 3)) + latent[..., None] * np.array([1.0, 1.0, 0.0])
    scale = np.array([1.0, 100.0, 1.0])
    plain, scaled = (probe_directions(f, latent, "categorical") for f in (x, x * scale))
    np.testing.assert_allclose(scaled * scale, plain, rtol=1e-6)
    named = probe_directions(x, 0.3 + 0.4 * latent, "categorical")
    np.testing.assert_array_equal(named, plain)  # classes may be any two numbers
    fitted = logistic().fit(x.reshape(-1, 3), latent.ravel())
    decision, read = fitted.decision_function(x.reshape(-1, 3)), x.reshape(-1, 3) @ plain[0]
    np.testing.assert_allclose(decision - read, (decision - read).mean(), atol=1e-9)
    three = probe_directions(x, rng.integers(0, 3, (80, 5)).astype(float), "categorical")
    np.testing.assert_allclose(three.sum(0), 0, atol=1e-9)


def test_of_no_latents_there_is_nothing_to_tell(model: SequenceTransformer, batch: Batch) -> None:
    assert interchange_table(model, batch, {}).empty


def test_refusals(model: SequenceTransformer, batch: Batch) -> None:
    inputs, targets = batch.inputs, batch.targets[:, 0]
    with pytest.raises(ArgumentError, match="base must pair with source and expected"):
        interchange(model, SITE, torch.eye(4)[:1], inputs, inputs[:3], targets, 0)
    with pytest.raises(ArgumentError, match="must differ from what the model gives"):
        interchange(model, SITE, torch.eye(4)[:1], inputs, inputs, model(inputs)[:, 0].detach(), 0)
    with pytest.raises(ArgumentError, match="directions must not be zero"):
        interchange(model, SITE, torch.zeros(1, 4), inputs, inputs, targets, 0)
    with pytest.raises(ArgumentError, match=r"hooks must name latents among a, .*'none'"):
        interchange_table(model, batch, {"none": SITE})


def test_moves_are_those_of_transformer_lens() -> None:
    from transformer_lens.tools.analysis import interchange as theirs

    generator = torch.Generator().manual_seed(0)
    base, source = torch.randn(2, 9, 6, generator=generator)
    basis = _span(torch.randn(2, 6, generator=generator))
    exchange = theirs.SubspaceInterchange(basis)
    placebo = theirs.NormMatchedPlacebo(exchange, theirs.random_basis(6, 2, 3))
    found = list(_moves(source - base, basis, [_random_basis(6, 2, 3)]))
    torch.testing.assert_close(base + found[0], exchange(base, source))
    torch.testing.assert_close(base + found[1], placebo(base, source))
