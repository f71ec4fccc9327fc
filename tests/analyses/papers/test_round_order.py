import pytest
import torch

from analyses.papers.memory.rounds import round_order
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=2, d_out=1, input="real", n_ctx=6, d_model=4, n_layers=2, n_heads=1, d_head=4, ffn=(8,),
    normalizer="softmax", dtype="float64",
)  # fmt: skip


def ffn_chain(*, linked: bool) -> tuple[SequenceTransformer, Batch]:
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
    model, batch = ffn_chain(linked=linked)
    assert torch.allclose(model(batch.inputs), batch.targets)
    (row,) = round_order(model, batch, ["a", "b"], PLACES).itertuples()
    if linked:
        assert row.score > 0.8
        assert row.low > 0.5
    else:
        assert abs(row.score) < 0.01
