"""Search for inputs on which a model's error is larger than the proved bound: there must be none.

The search starts from random inputs and takes steps that raise the error: real inputs move along
the sign of the gradient inside their box, ±1 inputs are set to the sign itself. The largest error
found is reported as *measured*: it is at most the true largest error, which is at most the bound.

A search that finds nothing proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.bounds.affine import Affine, Arithmetic
from interp.bounds.network import read_out, stream_after
from probes.certify.cover import Cells, streams
from probes.certify.domains import Addressed, Averages, Domain, Signs

_POSITIONS = 12


def search(model: Any, domain: Domain, seed: int) -> tuple[float, str]:
    """Measure the largest error, or the accuracy, on inputs of a domain.

    Args:
        model: The model.
        domain: The domain.
        seed: Seed of the random inputs.

    Returns:
        The number, and in words on what it was measured.
    """
    if isinstance(domain, Signs | Averages | Addressed):
        return worst_error(model, domain, seed=seed), "inputs that a search found"
    right, total = 0.0, 0.0
    worst, rng = 0.0, np.random.default_rng(seed)
    for cells in domain.sample(32, rng):
        ar = Arithmetic("real", budget=0)
        out = read_out(model, stream_after(model, streams(model, cells, ar), ar), ar)
        if isinstance(cells.targets, Affine):
            worst = max(worst, float(np.abs(out.centre - cells.targets.centre).max()))
        else:
            right += float(cells.weight[out.centre.argmax(-1) == cells.targets].sum())
            total += float(cells.weight.sum())
    return (worst if domain.kind == "error" else right / total), "random inputs"


def worst_error(
    model: Any,
    domain: Signs | Averages | Addressed,
    *,
    seed: int,
    rows: int = 32,
    steps: int = 8,
    dtype: torch.dtype = torch.float64,
) -> float:
    """Return the largest error that random inputs and steps along the gradient find.

    Args:
        model: The model.
        domain: The domain that the bound was proved on.
        seed: Seed of the random inputs.
        rows: The number of starting points at each position; at most twelve positions are tried.
        steps: The number of steps from every starting point.
        dtype: The number format that the model is run in.
    """
    net, worst = deepcopy(model).to("cpu", dtype).eval(), 0.0
    for cells in _some(domain, rows, np.random.default_rng(seed)):
        start: Any = cells.inputs
        x, targets = torch.tensor(start.centre, dtype=dtype), cells.targets
        for step in range(steps):
            x = x.detach().requires_grad_()
            off = net(x)[:, -1, 0] - _answers(domain, x, targets)
            worst = max(worst, float(off.detach().abs().max()))
            (slope,) = torch.autograd.grad(off.abs().sum(), x)
            x = _step(domain, x.detach(), slope, 1.0 - step / steps)
    return worst


def _some(domain: Domain, rows: int, rng: np.random.Generator) -> Iterator[Cells]:
    """Yield random inputs at twelve positions or fewer, including the first and the last."""
    judged = list(domain.judged_positions)  # type: ignore[attr-defined]
    picked = np.unique(np.linspace(0, len(judged) - 1, min(_POSITIONS, len(judged))).astype(int))
    for place, cells in enumerate(domain.sample(rows, rng)):
        if place in picked:
            yield cells


def _answers(domain: Domain, x: Tensor, targets: Any) -> Tensor:
    """Return the right answers, as a differentiable function of the inputs where they depend on
    them."""
    if isinstance(domain, Averages):
        rho = torch.tensor(domain.rho[: x.shape[1]][::-1].copy(), dtype=x.dtype)
        return torch.sin(domain.task.frequency * (x[..., 0] @ rho))
    if isinstance(domain, Addressed):
        codes = [domain.code_of(bits) for bits in x[:, -1, 1:].detach().double().numpy()]
        places = x.shape[1] - 1 - torch.tensor(domain.lags[codes])
        return x[torch.arange(len(x)), places, 0]
    return torch.tensor(targets.centre[:, 0], dtype=x.dtype)


def _step(domain: Any, x: Tensor, slope: Tensor, size: float) -> Tensor:
    """Return inputs after a step that raises the error, inside the domain and with the answer still
    defined."""
    free = torch.rand(x.shape, generator=torch.Generator().manual_seed(len(x))) < 0.7
    if isinstance(domain, Signs):
        free[:, [x.shape[1] - 1 - lag for lag in domain.lags]] = False
        return torch.where(free & (slope != 0), slope.sign(), x)
    moved = x.clone()
    values = x[..., 0] + size * domain.box * slope[..., 0].sign()
    moved[..., 0] = values.clamp(-domain.box, domain.box)
    if isinstance(domain, Addressed):
        bits = torch.where(free & (slope != 0), slope.sign(), x)[:, :-1, 1:]
        moved[:, :-1, 1:] = bits
    return moved
