"""Feed-forward networks with one or more hidden layers, with TransformerLens' hooks.

    pre = x W_in + b_in,  post = act(pre),  out = post W_out + b_out

In a deeper network the earlier hidden layers are ``hidden.{i}`` with hooks of the same names;
``W_in``, ``hook_pre``, ``hook_post`` belong to the last one, so that ``post W_out + b_out`` is the
output, which is what TransformerLens' neuron decompositions assume.

``pair_sign`` divides each pair of neurons by its root mean square: on (z, −z) it gives
(sign z, −sign z) exactly at any size of z (`depth` §3.3), and 0 at 0. It is not meant for training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks.points import HookPoint
from interp.models.spec import Activation, TransformerSpec


def activate(kind: Activation, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
    """Apply the activation function: ReLU, exact GELU, or the sign of each pair of neurons."""
    if kind == "relu":
        return F.relu(x)
    if kind == "gelu":
        return F.gelu(x)
    pairs = rearrange(x, "... (pair two) -> ... pair two", two=2)
    largest = pairs.abs().amax(dim=-1, keepdim=True)
    scaled = pairs / torch.where(largest == 0, 1.0, largest)  # no under- or overflow in the square
    size = scaled.pow(2).mean(dim=-1, keepdim=True).sqrt()
    signs = scaled / torch.where(size == 0, 1.0, size)
    return rearrange(signs, "... pair two -> ... (pair two)")


class HiddenLayer(nn.Module):
    """One hidden layer before the last: x → act(x W + b)."""

    def __init__(self, d_in: int, width: int, kind: Activation, dtype: torch.dtype) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(d_in, width, dtype=dtype))
        self.b = nn.Parameter(torch.zeros(width, dtype=dtype))
        self.kind = kind
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... width"]:
        """Return the layer's activations."""
        post: Tensor = self.hook_post(activate(self.kind, self.hook_pre(x @ self.W + self.b)))
        return post


class FFN(nn.Module):
    """A pointwise network from the residual stream to the residual stream.

    Args:
        spec: The model's options.
        widths: Hidden widths; empty for a layer without FFN in a model that has some.
        allocated: Width of the last hidden layer's tensors; entries beyond ``widths[-1]`` stay
            zero.
    """

    def __init__(self, spec: TransformerSpec, widths: tuple[int, ...], allocated: int) -> None:
        super().__init__()
        dtype = spec.torch_dtype
        before = widths[:-1]
        sizes = (spec.d_model, *before)
        self.hidden = nn.ModuleList(
            HiddenLayer(sizes[i], width, spec.activation_of(i), dtype)
            for i, width in enumerate(before)
        )
        self.kind = spec.activation_of(len(before)) if widths else "relu"
        self.W_in = nn.Parameter(torch.zeros(sizes[-1], allocated, dtype=dtype))
        self.b_in = nn.Parameter(torch.zeros(allocated, dtype=dtype))
        self.W_out = nn.Parameter(torch.zeros(allocated, spec.d_model, dtype=dtype))
        self.b_out = nn.Parameter(torch.zeros(spec.d_model, dtype=dtype))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Return the network's output, without adding it to the input."""
        for layer in self.hidden:
            x = layer(x)
        post = self.hook_post(activate(self.kind, self.hook_pre(x @ self.W_in + self.b_in)))
        return post @ self.W_out + self.b_out
