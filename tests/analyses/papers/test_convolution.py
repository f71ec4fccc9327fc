import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from analyses.papers.coupling.convolution import ConvolutionSpec
from interp.errors import ArgumentError
from interp.models.kinds import build, spec_from_dict

SPEC = ConvolutionSpec(2, 3, 12, input="real", d_hidden=5, n_layers=3, taps=3)


@torch.no_grad()
def test_it_is_torchs_own_dilated_convolution() -> None:
    model = build(SPEC, seed=1)
    x = torch.randn(4, 12, 2, generator=torch.Generator().manual_seed(0))
    expected = x.mT
    for i, layer in enumerate(model.layers):
        width = layer.W.shape[0] // 3
        weight = layer.W.reshape(3, width, 5).permute(2, 1, 0)
        expected = F.conv1d(expected, weight, layer.b, padding=2**i, dilation=2**i).relu()
    expected = expected.mT @ model.W_U + model.b_U
    output, cache = model.run_with_cache(x)
    assert torch.allclose(output, expected, atol=1e-6)
    assert cache["layers.2.hook_post"].shape == (4, 12, 5)


@torch.no_grad()
def test_it_sees_as_far_as_it_says_to_either_side() -> None:
    model = build(ConvolutionSpec(1, 1, 33, input="real", d_hidden=4, n_layers=4), seed=0)
    x = torch.zeros(2, 33, 1)
    x[1, 16] = 1.0
    moved = (model(x)[1] != model(x)[0])[:, 0].nonzero()[:, 0]
    assert (int(moved.min()), int(moved.max())) == (1, 31)  # 2⁴ − 1 = 15 to either side


def test_round_trip_and_refusals() -> None:
    assert spec_from_dict(SPEC.to_dict()) == SPEC
    with pytest.raises(ArgumentError, match="taps must be odd"):
        ConvolutionSpec(1, 1, 4, taps=4)
