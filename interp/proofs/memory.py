"""The constructive proof of `memory` Task I as weights (§1.4).

    attention   each memory T_i owns T_i + 1 dot-product-free heads: Σ_h a_h e^{−p_h s} ≈ 1[s = T_i]
                writes x_{t−T_i} into its own residual slot
    FFN         one clipped ramp per corner of {−1, +1}^{M+1} on which f = +1:
                f = −1 + 2 Σ_c clip(⟨c, u⟩ − (n − 3/2), 0, 1),   n = M + 1

At a corner ⟨c, u⟩ = n, at any other it is at most n − 2: while the slots' errors sum to less than
1/2 every ramp is exactly 0 or 1, so the errors are removed, not passed on. The certificate checks
that margin and adds the rounding of the readout.

Use it as ground truth for detectors and as the reference a trained model is compared with. It is
not a model of how gradient descent solves the task: its heads work only in signed combinations.
"""

from __future__ import annotations

import numpy as np
import torch

from interp.errors import Problems
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import LagFit, fit_lag
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part
from interp.tasks.memory import FixedMemory

__all__ = ["construct_fixed_memory"]

_MARGIN = 0.5


def construct_fixed_memory(task: FixedMemory) -> Construction:
    """A float64 model that computes the task exactly, up to rounding.

    Residual slots: 0 holds x_t, 1 … M the memories, M + 1 the answer.

    Raises:
        ArgumentError: if a lag cannot be selected well enough in float64, with the numbers.
    """
    fits = [fit_lag(lag) for lag in task.lags]
    _check_margin(task, fits)
    corners = [corner for corner, f in task.truth_table().items() if f > 0]
    slots = len(task.lags) + 2
    spec = TransformerSpec(
        input="real",
        d_in=1,
        d_out=1,
        n_ctx=task.length,
        d_model=slots,
        n_layers=1,
        n_heads=sum(len(fit.slopes) for fit in fits),
        d_head=1,
        ffn=(max(2 * len(corners), 1),),
        score="none",
        lag_bias="lin",
        normalizer="none",
        dtype="float64",
    )
    model = SequenceTransformer(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[0, 0] = 1
        _write_heads(model, fits)
        _write_readout(model, corners)
        model.unembed.W_U[slots - 1, 0] = 1
    return Construction(
        name=f"constructed-{task.name}",
        task=task,
        model=model,
        mechanism=_mechanism(task, fits),
        certificate=_certificate(task, fits, len(corners)),
    )


def _check_margin(task: FixedMemory, fits: list[LagFit]) -> None:
    problems = Problems("construct_fixed_memory")
    total = sum(fit.error for fit in fits)
    told = ", ".join(f"lag {fit.lag}: {fit.error:.2g}" for fit in fits)
    rule = f"must be selectable with a summed error below {_MARGIN} in float64 ({told})"
    problems.need(total < _MARGIN, "lags", rule, task.lags, "use smaller lags")
    problems.raise_if_any()


def _write_heads(model: SequenceTransformer, fits: list[LagFit]) -> None:
    attn, head = model.blocks[0].attn, 0
    for slot, fit in enumerate(fits, start=1):
        for slope, coefficient in zip(fit.slopes, fit.coefficients, strict=True):
            attn.terms["lag"].p[head] = float(slope)
            attn.W_V[head, 0, 0] = 1
            attn.W_O[head, 0, slot] = float(coefficient)
            head += 1


def _write_readout(model: SequenceTransformer, corners: list[tuple[int, ...]]) -> None:
    """Two ReLUs a corner: relu(v) − relu(v − 1), v = ⟨c, u⟩ − (n − 3/2)."""
    mlp = model.blocks[0].mlp
    mlp.b_out[-1] = -1
    for index, corner in enumerate(corners):
        n = len(corner)
        weights = torch.tensor(corner, dtype=torch.float64)
        for neuron, shift, sign in ((2 * index, 0.0, 2.0), (2 * index + 1, 1.0, -2.0)):
            mlp.W_in[:n, neuron] = weights
            mlp.b_in[neuron] = -(n - 1.5) - shift
            mlp.W_out[neuron, -1] = sign


def _mechanism(task: FixedMemory, fits: list[LagFit]) -> Mechanism:
    parts, head = [], 0
    for name, fit in zip(task.arguments[1:], fits, strict=True):
        for _ in fit.slopes:
            parts.append(Part("head", 0, head, "memory-location", name, fit.lag))
            head += 1
    parts.append(Part("ffn", 0, None, "readout", "f"))
    latents = (*task.arguments, "f")
    hooks = ("hook_embed", *["blocks.0.hook_resid_mid"] * len(fits), "blocks.0.hook_resid_post")
    axes = torch.eye(len(latents), dtype=torch.float64)
    return Mechanism(
        parts=tuple(parts),
        directions=dict(zip(latents, axes, strict=True)),
        written=dict(zip(latents, hooks, strict=True)),
    )


def _certificate(task: FixedMemory, fits: list[LagFit], corners: int) -> Certificate:
    """Slot errors stay under the margin, so what is left is the readout's own rounding.

    Each ramp is a difference of two ReLUs of size at most n + 1, hence exact to a few units in the
    last place of that size; they are summed with weight 2.
    """
    n = len(task.lags) + 1
    unit = float(np.finfo(np.float64).eps) / 2
    rounding = 4 * corners * (n + 4) * (n + corners + 2) * unit
    parts = {f"slot of lag {fit.lag}": fit.error for fit in fits}
    parts |= {"margin": _MARGIN, "rounding of the readout": rounding}
    domain = f"every ±1 input of at most {task.length} positions, at positions ≥ {max(task.lags)}"
    return Certificate(error=rounding, parts=parts, domain=domain)
