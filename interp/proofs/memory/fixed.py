"""The constructive proof for `memory` Task I as weights (§1.4).

    attention   each memory T_i owns T_i + 1 dot-product-free heads: Σ_h a_h e^{−p_h s} ≈ 1[s = T_i]
                writes x_{t−T_i} into its own residual slot
    FFN         one clipped ramp per corner of {−1, +1}^{M+1} (:mod:`interp.proofs.memory.corners`)

While the slots' errors sum to less than 1/2 every ramp is exactly 0 or 1, so the errors are
removed, not passed on. The certificate checks that margin and adds the rounding of the readout.

Use it as ground truth for detectors and as the reference a trained model is compared with. It is
not a model of how gradient descent solves the task: its heads work only in signed combinations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch

from interp.errors import Problems
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import LagFit
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model
from interp.proofs.memory.corners import MARGIN, CornerTable
from interp.proofs.memory.rounding import Evaluation, select_lag, slot_error, sum_rounding
from interp.tasks.memory import FixedMemory

_UNIT = 2.0**-53


def construct_fixed_memory(task: FixedMemory) -> Construction:
    """A float64 model that computes the task exactly, up to rounding.

    Residual slots: 0 holds x_t, 1 … M the memories, M + 1 the answer.

    Raises:
        ArgumentError: if a lag cannot be selected well enough in float64, with the numbers.
    """
    plan = _plan(task)
    spec = TransformerSpec(
        input="real",
        d_in=1,
        d_out=1,
        n_ctx=task.length,
        d_model=plan.width,
        n_layers=1,
        n_heads=plan.heads,
        d_head=1,
        ffn=(plan.table.neurons,),
        score="none",
        lag_bias="lin",
        normalizer="none",
        dtype="float64",
    )
    model = zero_model(spec)
    with torch.no_grad():
        model.embed.W_E[0, 0] = 1
        _write_heads(model, plan.fits)
        plan.table.write(model.blocks[0].mlp, range(plan.width - 1), plan.width - 1, 0)
        model.unembed.W_U[-1, 0] = 1
    return Construction(
        name=f"constructed-{task.name}",
        task=task,
        model=model,
        mechanism=_mechanism(task, plan.fits),
        certificate=_certificate(plan),
    )


@dataclass(frozen=True)
class _Plan:
    """What is built: a fit per memory and the table of f; ``turned`` if the margin holds in any
    basis."""

    task: FixedMemory
    fits: tuple[LagFit, ...]
    table: CornerTable
    turned: bool

    @property
    def width(self) -> int:
        """The number of residual coordinates: x_t, one per memory, and the answer."""
        return len(self.task.lags) + 2

    @property
    def heads(self) -> int:
        return sum(len(fit.slopes) for fit in self.fits)

    def slots(self) -> list[float]:
        """A bound on the error of each memory's residual coordinate."""
        how = [_evaluation(self.task, len(fit.slopes)) for fit in self.fits]
        return [slot_error(fit, one) for fit, one in zip(self.fits, how, strict=True)]

    def turned_sum(self) -> float:
        """A bound on the error of the readout's linear forms in a rotated basis."""
        how = _evaluation(self.task, self.heads, width=self.width)
        p = np.concatenate([fit.slopes for fit in self.fits])
        a = np.concatenate([fit.coefficients for fit in self.fits])
        spread = sum_rounding(p, a, how)
        return sum(fit.fit_error for fit in self.fits) + sqrt(self.width) * spread


def _plan(task: FixedMemory) -> _Plan:
    """Fits for the worst basis if they keep the margin there, else for the basis of the slots."""
    values = {corner: float(f) for corner, f in task.truth_table().items()}
    table, slots = CornerTable(values), len(task.lags) + 2
    heads = sum(lag + 1 for lag in task.lags)
    dense = _evaluation(task, heads, width=slots)
    plan = _Plan(task, tuple(select_lag(lag, dense) for lag in task.lags), table, turned=True)
    if plan.turned_sum() >= MARGIN:
        fits = tuple(select_lag(lag, _evaluation(task, lag + 1)) for lag in task.lags)
        plan = _Plan(task, fits, table, turned=False)
    _check_margin(plan)
    return plan


def _evaluation(task: FixedMemory, heads: int, width: int = 0) -> Evaluation:
    reach = 2 * sqrt(len(task.lags) + 2)
    return Evaluation(_UNIT, keys=task.length, heads=heads, width=width, reach=reach)


def _check_margin(plan: _Plan) -> None:
    problems, errors = Problems("construct_fixed_memory"), plan.slots()
    lags = plan.task.lags
    told = ", ".join(f"lag {lag}: {error:.2g}" for lag, error in zip(lags, errors, strict=True))
    rule = f"must be selectable with a summed error below {MARGIN} in float64 ({told})"
    problems.need(sum(errors) < MARGIN, "lags", rule, lags, "use smaller lags")
    problems.raise_if_any()


def _write_heads(model: SequenceTransformer, fits: tuple[LagFit, ...]) -> None:
    attn, head = model.blocks[0].attn, 0
    for slot, fit in enumerate(fits, start=1):
        for slope, coefficient in zip(fit.slopes, fit.coefficients, strict=True):
            attn.terms["lag"].p[head] = float(slope)
            attn.W_V[head, 0, 0] = 1
            attn.W_O[head, 0, slot] = float(coefficient)
            head += 1


def _mechanism(task: FixedMemory, fits: tuple[LagFit, ...]) -> Mechanism:
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


def _certificate(plan: _Plan) -> Certificate:
    """Slot errors stay under the margin, so what is left is the readout's own rounding."""
    task = plan.task
    lags = zip(task.lags, plan.slots(), strict=True)
    parts = {f"slot of lag {lag}": error for lag, error in lags}
    rounding = plan.table.rounding(_UNIT)
    parts |= {"margin": MARGIN, "rounding of the readout": rounding}
    turned = None
    if plan.turned:
        parts["summed error in any basis"] = plan.turned_sum()
        reach = _evaluation(task, 0).reach
        turned = plan.table.rounding(_UNIT, width=plan.width, reach=reach)
    domain = f"every ±1 input of at most {task.length} positions, at positions ≥ {max(task.lags)}"
    return Certificate(rounding, parts, domain, error_in_any_basis=turned)
