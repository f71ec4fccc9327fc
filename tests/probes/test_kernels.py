import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory
from probes.kernels import layer_kernels
from probes.linear import direction

N, ROWS = 9, 30
SPEC = TransformerSpec(
    d_in=1, d_out=1, n_ctx=N, d_model=6, n_layers=2, n_heads=(2, 3), d_head=3, ffn=(8,),
    input="real", positions="learned", identity_ov=True, dtype="float64",
)  # fmt: skip


def model_and_rows() -> tuple[SequenceTransformer, Batch]:
    model = SequenceTransformer(SPEC, seed=1)
    gen = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.b.copy_(torch.tensor([0.7, -0.4, 0.2]))
    x = torch.randn(ROWS, N, 1, generator=gen, dtype=torch.float64)
    mask = (torch.arange(N) >= 3).expand(ROWS, -1).clone()
    mask[0, 5] = False
    return model, Batch(x, x, mask, {"x1": x[..., 0].roll(1, 1)})


@pytest.mark.parametrize("layer", [0, 1])
def test_kernels_equal_a_direct_loop(layer: int) -> None:
    """Key by key and head by head, identity terms included, along the probe's direction."""
    model, rows = model_and_rows()
    found = layer_kernels(model, rows, layer, {"x1": 1})
    heads, places = SPEC.heads[layer], [3, 4, 6, 7, 8]
    _, cache = model.run_with_cache(rows.inputs)
    attn, at = model.blocks[layer].attn, f"blocks.{layer}."
    stream = cache[at + "hook_resid_mid"].detach().numpy()
    w = direction(stream[:, places], rows.latents["x1"].numpy()[:, places])
    pattern, v = (cache[at + f"attn.hook_{name}"].detach() for name in ("pattern", "v"))
    x = cache[at + "ln1.hook_normalized"].detach()
    values = np.zeros((ROWS, N, heads))
    for r, j, h in np.ndindex(values.shape):
        result = v[r, j, h] @ attn.W_O[h] + attn.b[h] * x[r, j]
        values[r, j, h] = float(result.detach().numpy() @ w)
    centred = values - values.mean((0, 1))
    scaled = (centred / np.abs(centred).max((0, 1))).reshape(-1, heads)
    signal = (scaled @ np.linalg.svd(scaled, full_matrices=False)[2][0]).reshape(ROWS, N)
    signal /= np.sqrt((signal**2).mean())
    expected = np.zeros((heads, N))
    for h, lag in np.ndindex(expected.shape):
        terms = [
            float(pattern[r, h, i, i - lag]) * centred[r, i - lag, h] * signal[r, i - lag]
            for r in range(ROWS) for i in range(lag, N) if rows.mask[r, i]
        ]  # fmt: skip
        expected[h, lag] = np.mean(terms)
    together = expected.sum(0)
    expected *= np.sign(together[np.abs(together).argmax()])
    np.testing.assert_allclose(found.kernels["x1"], expected, atol=1e-9)
    share = abs(expected.sum(0)[1]) / np.abs(expected.sum(0)).sum()
    assert found.concentration("x1", 1) == pytest.approx(share)
    looked = [pattern[r, 1, i, i - 2] for r in range(1, ROWS) for i in range(3, N)]
    skipped = [pattern[0, 1, i, i - 2] for i in range(3, N) if i != 5]
    by_row = [*np.array(looked).reshape(ROWS - 1, -1).mean(1), np.mean(skipped)]
    assert found.mass[1, 2] == pytest.approx(np.mean(by_row))


def test_a_constructed_memory_is_selected_together_and_by_no_head() -> None:
    task = FixedMemory((1, 3), "multiplexer", 10)
    model, rows = construct_fixed_memory(task).model, task.sample(40, seed=0)
    lags = dict(zip(task.arguments[1:], task.lags, strict=True))
    found = layer_kernels(model, rows, 0, lags)
    assert (found.mass.argmax(1) == 0).all()
    for name, lag in lags.items():
        assert found.concentration(name, lag) > 0.95


def test_kernel_refusals() -> None:
    model, rows = model_and_rows()
    with pytest.raises(ArgumentError, match=r"memories must name latents among x1, got \['y'\]"):
        layer_kernels(model, rows, 0, {"y": 1})
    with pytest.raises(ArgumentError, match=r"layer must be one that has heads, got 2"):
        layer_kernels(model, rows, 2, {"x1": 1})
    both_ways = SequenceTransformer(TransformerSpec(**{**SPEC.to_dict(), "causal": False}))
    with pytest.raises(ArgumentError, match="model must have causal attention"):
        layer_kernels(both_ways, rows, 0, {"x1": 1})
