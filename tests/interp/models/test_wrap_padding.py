"""PyTorch's fast path does not run in a wrapped module: hooks see every row and position."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prooflens as pl
from interp.errors import ConformanceError

N, LENGTH, WIDTH, HEADS = 3, 7, 16, 4


class Padded(nn.Module):
    """Token ids with zeros for pads, through an encoder that is told of the pads."""

    def __init__(self, *, norm_first: bool, nested: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 24, dropout=0.1, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.out = nn.Linear(WIDTH, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0))
        return found


def rows() -> Tensor:
    tokens = torch.randint(1, 11, (N, LENGTH), generator=torch.Generator().manual_seed(0))
    tokens[1, 5:], tokens[2, 3:] = 0, 0
    return tokens


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("named", [False, True])
@torch.no_grad()
def test_pads_stay_in_what_hooks_see(norm_first: bool, nested: bool, named: bool) -> None:
    torch.manual_seed(0)
    module, tokens = Padded(norm_first=norm_first, nested=nested).eval(), rows()
    names: Any = None
    if named:  # the module itself, with attention closed
        names = {f"blocks.{i}.hook_resid_post": f"encoder.layers.{i}" for i in range(2)}
    model = pl.wrap(module, names, example=tokens)
    output, cache = model.run_with_cache(tokens)
    alone = module.train(False)
    for row, length in enumerate((LENGTH, 5, 3)):
        short = tokens[row : row + 1, :length]
        torch.testing.assert_close(output[row, :length], alone(short)[0], atol=1e-5, rtol=1e-4)
        stream = alone.embed(short)
        for layer in range(2):
            stream = alone.encoder.layers[layer](stream)
            seen = cache[f"blocks.{layer}.hook_resid_post"][row, :length]
            torch.testing.assert_close(seen, stream[0], atol=1e-5, rtol=1e-4)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_query_that_sees_no_key_is_named() -> None:
    module, tokens = Padded(norm_first=True, nested=False).eval(), rows()
    tokens[1] = 0  # a row of pads alone: no query of it has a key
    with pytest.raises(
        ConformanceError, match=r"row 1 has no key that position 0 may see.*give the example no row"
    ) as caught:
        pl.wrap(module, example=tokens)
    assert "inf" not in str(caught.value)
