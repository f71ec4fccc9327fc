import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from probes.rounds import first_decodable, round_order

SPEC = TransformerSpec(
    d_in=2, d_out=1, input="real", n_ctx=6, d_model=4, n_layers=2, n_heads=1, d_head=4, ffn=(8,),
    normalizer="softmax", dtype="float64",
)  # fmt: skip


def chained(*, linked: bool) -> tuple[SequenceTransformer, Batch]:
    """Two FFNs: the first writes a = |x_1| into channel 2; the second writes b = |channel 2 − 1|
    into channel 3 (linked), or computes the same from the input (not linked)."""
    model = SequenceTransformer(SPEC, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[0, 0] = model.embed.W_E[1, 1] = 1.0
        first, second = (block.mlp for block in model.blocks)
        first.W_in[0, 0], first.W_in[0, 1] = 1.0, -1.0
        first.W_out[0, 2] = first.W_out[1, 2] = 1.0
        if linked:
            second.W_in[2, 0], second.b_in[0] = 1.0, -1.0
            second.W_in[2, 1], second.b_in[1] = -1.0, 1.0
            second.W_out[0, 3] = second.W_out[1, 3] = 1.0
        else:  # ||x| − 1| = |x| − 1 + 2 relu(1 − |x|) by ramps of x alone
            for i, (w, b, c) in enumerate([(1, 0, -1), (-1, 0, -1), (1, -1, 2), (-1, -1, 2)]):
                second.W_in[0, i], second.b_in[i] = float(w), float(b)
                second.W_out[i, 3] = float(c)
            second.b_out[3] = 1.0
        model.unembed.W_U[3, 0] = 1.0
    x = 2 * torch.randn(
        (150, 6, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    a = x[..., 0].abs()
    b = (a - 1).abs()
    mask = torch.ones(150, 6, dtype=torch.bool)
    return model, Batch(x, b[..., None], mask, {"a": a, "b": b})


PLACES = {"a": "blocks.0.hook_resid_post", "b": "blocks.1.hook_resid_post"}


@pytest.mark.parametrize("linked", [True, False])
def test_a_round_depends_on_the_one_before_only_where_it_reads_it(linked: bool) -> None:
    model, batch = chained(linked=linked)
    assert torch.allclose(model(batch.inputs), batch.targets)
    table = round_order(model, batch, [["a"], ["b"]], PLACES).set_index("method")
    if linked:
        assert table.loc["patch", "score"] > 0.8
        assert table.loc["patch", "p"] < 1e-6
        assert table.loc["patch", "low"] > 0.5
        assert table.loc["placebo", "score"] < table.loc["patch", "low"]
    else:
        assert abs(table.loc["patch", "score"]) < 0.01


def test_channels_are_named_as_in_the_table_of_probes() -> None:
    model, batch = chained(linked=True)
    a, b = batch.latents["a"], batch.latents["b"]
    wide = Batch(batch.inputs, batch.targets, batch.mask, {"m": torch.stack((b, a), -1), "b": b})
    found = round_order(model, wide, [["m[1]"], ["b"]], {"m[1]": PLACES["a"], "b": PLACES["b"]})
    single = round_order(model, batch, [["a"], ["b"]], PLACES)
    pd.testing.assert_frame_equal(found, single)
    with pytest.raises(ArgumentError, match=r"got \['m'\]: those .* m\[0\], m\[1\], b"):
        round_order(model, wide, [["m"], ["b"]], {"m": PLACES["a"], "b": PLACES["b"]})


def test_the_first_place_is_the_first_clear_one() -> None:
    table = pd.DataFrame(
        {
            "hook": ["h0", "h1", "h2"] * 2,
            "latent": ["a"] * 3 + ["b"] * 3,
            "score": [0.95, 0.95, 0.99, 0.1, 0.2, 0.3],
            "q": [0.5, 0.001, 0.001, 0.001, 0.001, 0.001],
        }
    )
    assert first_decodable(table).to_numpy().tolist() == [["a", "h1", 0.95], ["b", "", 0.3]]


def test_refusals() -> None:
    model, batch = chained(linked=True)
    with pytest.raises(ArgumentError, match="chain must hold two rounds or more"):
        round_order(model, batch, [["a"]], PLACES)
