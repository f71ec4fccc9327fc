"""Linear layers by oneDNN, which torch brings along for its compiler, in place of MKL.

    y = x Wᵀ + b        float32 on a CPU, where no gradient is asked for

MKL takes slower paths on processors that are not Intel's: there oneDNN multiplies the matrices of a
language model two to four times as fast. Its sums run in another order, with two to three times
the rounding error of MKL's (about 1e-6 of the largest output). Small matrices gain nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def use_onednn(model: nn.Module) -> None:
    """Let the linear layers of a model be computed by oneDNN, where this torch has it.

    Args:
        model: A model that nobody else holds: the ``forward`` of its linear layers is replaced.
    """
    from transformers.pytorch_utils import Conv1D

    there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not (there and torch.backends.mkldnn.is_available()):
        return
    for module in model.modules():
        if type(module) in (nn.Linear, Conv1D):
            turned = isinstance(module, Conv1D)
            module.forward = partial(_forward, module, module.forward, turned)


def _forward(module: Any, plain: Callable[[Tensor], Tensor], turned: bool, value: Tensor) -> Tensor:
    weight = module.weight.t() if turned else module.weight
    single = value.dtype == weight.dtype == torch.float32 and value.device.type == "cpu"
    if not single or (torch.is_grad_enabled() and value.requires_grad):
        return plain(value)
    with torch.no_grad():
        multiply = torch.ops.mkldnn._linear_pointwise
        found: Tensor = multiply(value, weight, module.bias, "none", [], "")
    return found
