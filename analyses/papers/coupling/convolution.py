"""A stack of dilated convolutions over positions: the local baseline of `coupling`.

    layer i    h_t = act(Σ_j x_{t + (j − (K−1)/2) 2^i} W_j + b),  j < K, zeros beyond the ends

The dilation doubles from layer to layer, so n layers of K = 3 taps see 2^n − 1 positions to either
side: attention looks both ways, and so does this. Hooks: ``hook_embed``, and
``layers.{i}.hook_pre``, ``layers.{i}.hook_post`` [batch, pos, d_hidden].

A convolution shares its weights between positions and knows where it stands only through the zeros
beyond the ends: a change of order that differs between positions is hard for it for that reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from pydantic import AfterValidator
from torch import Tensor, nn

from prooflens.architectures import (
    Activation,
    Baseline,
    BaselineSpec,
    HiddenLayer,
    register_model,
)
from prooflens.files import Positive, rule_error

__all__ = ["Convolution", "ConvolutionSpec"]


def _odd(taps: int) -> int:
    if taps % 2 == 0:
        raise rule_error("must be odd, so that both sides get equally many")
    return taps


@dataclass(frozen=True)
class ConvolutionSpec(BaselineSpec):
    """Options of a stack of dilated convolutions.

    Attributes:
        d_hidden: Number of channels of every layer.
        n_layers: Number of layers; layer i has dilation 2^i.
        taps: How many positions a layer reads; an odd number.
        activation: ``relu`` or ``gelu``.
    """

    kind: ClassVar[str] = "convolution"

    d_hidden: Positive = 32
    n_layers: Positive = 5
    taps: Annotated[Positive, AfterValidator(_odd)] = 3
    activation: Literal["relu", "gelu"] = "relu"


class Convolution(Baseline):
    """A stack of dilated convolutions, read out at every position."""

    spec: ConvolutionSpec

    def _make(self) -> int:
        spec, width = self.spec, self.spec.width
        kind = cast("Activation", spec.activation)
        self.layers = nn.ModuleList()
        for _ in range(spec.n_layers):
            layer = HiddenLayer(spec.taps * width, spec.d_hidden, kind, spec.torch_dtype)
            layer.W = self._gaussian(spec.taps * width, spec.d_hidden)
            self.layers.append(layer)
            width = spec.d_hidden
        return width

    def _between(self, x: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos hidden"]:
        n, half = x.shape[1], self.spec.taps // 2
        for i, layer in enumerate(self.layers):
            reach = half * 2**i
            padded = F.pad(x, (0, 0, reach, reach))
            read = [padded[:, j * 2**i : j * 2**i + n] for j in range(self.spec.taps)]
            x = layer(torch.cat(read, dim=-1))
        return x


register_model("convolution", ConvolutionSpec, Convolution)
