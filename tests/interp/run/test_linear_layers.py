"""Linear layers by oneDNN against sums in double precision."""

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from interp.run.plain import use_onednn


def layer(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return Conv1D(40, 24) if kind == "Conv1D" else nn.Linear(24, 40, bias=kind == "bias")


@pytest.mark.parametrize("kind", ["bias", "no bias", "Conv1D"])
def test_outputs_are_those_of_double_precision(kind: str) -> None:
    plain, value = layer(kind), torch.randn(3, 7, 24)
    exact = copy.deepcopy(plain).double()(value.double())
    use_onednn(plain)
    for some in (value, value[:, ::2], value[:0]):
        with torch.no_grad():
            found = plain(some)
        rows = slice(0, len(some))
        expected = exact[rows, ::2] if some.shape[1] != 7 else exact[rows]
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


def test_gradients_and_other_number_formats_are_torchs_own() -> None:
    plain, value = layer("bias"), torch.randn(3, 24, requires_grad=True)
    other = copy.deepcopy(plain)
    use_onednn(other)
    gradients = [torch.autograd.grad(one(value).square().sum(), value)[0] for one in (plain, other)]
    torch.testing.assert_close(*gradients, atol=0, rtol=0)
    half = value.detach().bfloat16()
    torch.testing.assert_close(other.bfloat16()(half), plain.bfloat16()(half), atol=0, rtol=0)
