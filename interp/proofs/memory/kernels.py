"""The constructive proof for `memory` Task III, and for Task I with real readouts (§1.4).

    attention   kernel ρ_i owns H dot-product-free heads, Σ_h a_h e^{−p_h φ(s)} ≈ ρ_i(s); they write
                (ρ_i * x)(t) into its own slot. A lag T is the kernel 1[s = T].
    FFN         f, a ReLU network (:mod:`interp.proofs.memory.nets`)

    |output − y| ≤ L √(Σ_i ε_i²) + E_FFN + rounding,   L the readout's Lipschitz constant (or a
                   sum over the network's weights, where that is less)
    ε_i = B max_t Σ_{s ≤ t} |ρ_i(s) − Σ_h a_h (Z_∞/Z_t) e^{−p_h φ(s)}| + rounding,   |x| ≤ B

Without a normaliser Z_∞/Z_t is 1. A softmax divides each head by Z_t = Σ_{s ≤ t} e^{−p φ(s)},
and its coefficient multiplied by the limit Z_∞: early positions are off by what has not settled,
so the certificate holds from the task's burn-in on. The sum over s is finite, and evaluated in
extended precision. Inputs beyond B are outside the domain: no bound on unbounded inputs exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, get_args

import mpmath
import numpy as np
import torch
from jaxtyping import Float64

from interp.errors import Problems
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import LagFit
from interp.proofs.lagfits.error import errors_so_far
from interp.proofs.lagfits.positions import DIGITS, Positions, phi_values, tail
from interp.proofs.lagfits.sums import SumFit, fit_sum
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part
from interp.proofs.memory.kernel_sums import HeadSum, fit_kernel
from interp.proofs.memory.nets import ReluNet, readout_net
from interp.proofs.memory.rounding import Evaluation, sum_rounding
from interp.proofs.memory.selection import select_lag
from interp.proofs.zero_model import zero_model
from interp.tasks.memory import KernelMemory, RealMemory

__all__ = ["Normalizer", "construct_kernel_memory"]

Normalizer = Literal["none", "softmax"]
_UNIT = 2.0**-53
_SHARE = 0.25


def construct_kernel_memory(
    task: KernelMemory | RealMemory,
    *,
    heads: int = 6,
    positions: Positions = "lin",
    normalizer: Normalizer = "none",
    largest: float = 6.0,
) -> Construction:
    """A float64 model with one layer of dot-product-free attention that computes the task.

    Args:
        task: A task with kernels, or with lags and a real readout.
        heads: Number of heads per kernel; a lag T with ``lin`` positions always has T + 1.
        positions: ``lin`` (exponentials) or ``log`` (powers).
        normalizer: ``none`` or ``softmax``.
        largest: The bound B on Gaussian inputs; inputs of ±1 have B = 1.

    Raises:
        ArgumentError: for arguments out of range, or if a coordinate's error exceeds a quarter of
            its range; the message gives the numbers.
    """
    problems = Problems("construct_kernel_memory")
    need = problems.need
    need(heads >= 1, "heads", "must be at least 1", heads, "add heads")
    need(positions in get_args(Positions), "positions", "must be lin or log", positions, "pick one")
    known = get_args(Normalizer)
    need(normalizer in known, "normalizer", "must be none or softmax", normalizer, "pick one")
    need(largest > 0, "largest", "must be positive", largest, "6 covers normal inputs")
    problems.raise_if_any()
    bound = largest if task.inputs == "gaussian" else 1.0
    plan = _Plan(task, positions, normalizer, bound, _fits(task, heads, positions))
    _check_slots(plan)
    model = _model(plan)
    name = f"constructed-{task.name}-{positions}" + ("-softmax" if normalizer != "none" else "")
    return Construction(name, task, model, _mechanism(plan), _certificate(plan))


@dataclass(frozen=True)
class _Plan:
    """What is built, and a bound on the error of each residual coordinate."""

    task: KernelMemory | RealMemory
    positions: Positions
    normalizer: Normalizer
    bound: float
    fits: tuple[HeadSum, ...]

    @property
    def memories(self) -> tuple[str, ...]:
        """The names of the latents that heads write."""
        return tuple(memory.name for memory in self.task.memories())

    @property
    def start(self) -> int:
        """The first position of the domain on which the certificate holds."""
        return self.task.start

    @property
    def reads_now(self) -> bool:
        """Whether x_t itself is among the arguments of f."""
        return len(self.task.arguments) > len(self.fits)

    @property
    def reads(self) -> list[int]:
        """The coordinates of the arguments of f."""
        return list(range(0 if self.reads_now else 1, len(self.fits) + 1))

    @property
    def width(self) -> int:
        """The number of coordinates: x_t, one per memory, and the answer."""
        return len(self.fits) + 2

    def wanted(self, memory: int) -> Float64[np.ndarray, " lag"]:
        """The weights ρ_i that memory i should give to every lag of a row."""
        location = self.task.memories()[memory].location
        if isinstance(location, int):
            return (np.arange(self.task.length) == location).astype(np.float64)
        return np.asarray(location)

    def limits(self, memory: int) -> Float64[np.ndarray, " head"]:
        """The limit Z_∞ of each head's normaliser, or 1 without a normaliser."""
        slopes = self.fits[memory].slopes
        if self.normalizer == "none":
            return np.ones(len(slopes))
        with mpmath.workdps(DIGITS):
            exact = [mpmath.mpf(float(p)) for p in slopes]
            return np.array([float(z) for z in tail(self.positions, exact, 0)])

    def kernel_errors(self, memory: int) -> Float64[np.ndarray, " pos"]:
        """The kernel's error Σ_{s ≤ t} |ρ(s) − held_t(s)| at each position t of the domain."""
        slopes, coefficients = self.fits[memory].slopes.tolist(), self.fits[memory].coefficients
        found = errors_so_far(
            self.positions,
            slopes,
            coefficients.tolist(),
            self.wanted(memory),
            softmax=self.normalizer == "softmax",
        )
        return found[self.start :]

    def slot(self, memory: int) -> float:
        """The bound ε_i on the error of memory i's coordinate."""
        return self.bound * (float(self.kernel_errors(memory).max()) + self._rounding([memory], 0))

    def spread(self) -> float:
        """A bound on the rounding error in every direction when the basis is rotated."""
        return self.bound * self._rounding(range(len(self.fits)), self.width)

    def _rounding(self, memories: range | list[int], width: int) -> float:
        p = np.concatenate([self.fits[i].slopes for i in memories])
        a = np.concatenate([self.fits[i].coefficients * self._unsettled(i) for i in memories])
        how = Evaluation(
            _UNIT,
            keys=self.task.length,
            heads=len(p),
            log=self.positions == "log",
            softmax=self.normalizer == "softmax",
            width=width,
            reach=self.reach / self.bound,
        )
        return sum_rounding(p, a, how)

    def _unsettled(self, memory: int) -> Float64[np.ndarray, " head"]:
        """The ratio Z_∞/Z_t at the start of the domain, where it is largest."""
        if self.normalizer == "none":
            return np.ones(len(self.fits[memory].slopes))
        s = np.arange(self.start + 1, dtype=np.float64)
        held = np.exp(-np.outer(phi_values(self.positions, s), self.fits[memory].slopes)).sum(0)
        return self.limits(memory) / held

    @property
    def sizes(self) -> list[float]:
        """Bounds on the arguments of f, with room for errors of a quarter of their range."""
        averages = [
            (1 + 2 * _SHARE) * self.bound * float(np.abs(self.wanted(i)).sum())
            for i in range(len(self.fits))
        ]
        return [self.bound, *averages] if self.reads_now else averages

    @property
    def reach(self) -> float:
        """A bound on the norm of the residual stream."""
        inside = sqrt(self.bound**2 + sum(size**2 for size in self.sizes))
        return (1 + max(self.task.f.lipschitz, 1.0)) * inside + 1

    @property
    def net(self) -> ReluNet:
        """The ReLU network that computes the readout f."""
        return readout_net(self.task.f, self.sizes)


def _fits(task: KernelMemory | RealMemory, heads: int, positions: Positions) -> tuple[HeadSum, ...]:
    """The sums of all memories: kernels are fitted on a row's lags, single lags on all lags."""
    return tuple(_fit(memory.location, task.length, heads, positions) for memory in task.memories())


def _fit(location: Any, length: int, heads: int, positions: Positions) -> HeadSum:
    """The heads for a kernel ``[lag]``, or for one lag."""
    if not isinstance(location, int):
        return fit_kernel(location, heads, positions)
    fit: LagFit | SumFit
    if positions == "log":
        fit = fit_sum(location, heads, positions="log")
    else:
        fit = select_lag(location, Evaluation(_UNIT, keys=length, heads=location + 1))
    return HeadSum(fit.slopes, fit.coefficients)


def _check_slots(plan: _Plan) -> None:
    problems = Problems("construct_kernel_memory")
    for i, name in enumerate(plan.memories):
        share = plan.slot(i) / (2 * plan.bound * float(np.abs(plan.wanted(i)).sum()))
        rule = f"must be held within {_SHARE} of its range ({name} is off by {share:.2g} of it)"
        advice = "use more heads, other positions, nearer lags, or a longer burn-in"
        problems.need(share < _SHARE, "heads", rule, len(plan.fits[i].slopes), advice)
    problems.raise_if_any()


def _model(plan: _Plan) -> SequenceTransformer:
    spec = TransformerSpec(
        input="real",
        d_in=1,
        d_out=1,
        n_ctx=plan.task.length,
        d_model=plan.width,
        n_layers=1,
        n_heads=sum(len(fit.slopes) for fit in plan.fits),
        d_head=1,
        ffn=plan.net.widths,
        score="none",
        lag_bias=plan.positions,
        normalizer=plan.normalizer,
        dtype="float64",
    )
    model = zero_model(spec)
    with torch.no_grad():
        model.embed.W_E[0, 0] = 1
        attn, head = model.blocks[0].attn, 0
        for memory, fit in enumerate(plan.fits):
            held = fit.coefficients * plan.limits(memory)
            for slope, coefficient in zip(fit.slopes, held, strict=True):
                attn.terms["lag"].p[head] = float(slope)
                attn.W_V[head, 0, 0] = 1
                attn.W_O[head, 0, 1 + memory] = float(coefficient)
                head += 1
        plan.net.write(model.blocks[0].mlp, plan.reads, plan.width - 1)
        model.unembed.W_U[-1, 0] = 1
    return model


def _mechanism(plan: _Plan) -> Mechanism:
    parts: list[Part] = []
    for memory, fit in zip(plan.task.memories(), plan.fits, strict=True):
        lag = memory.location if isinstance(memory.location, int) else None
        role = "memory-kernel" if lag is None else "memory-location"
        heads = range(len(parts), len(parts) + len(fit.slopes))
        parts += [Part("head", 0, head, role, memory.name, lag) for head in heads]
    parts.append(Part("ffn", 0, None, "readout", "f"))
    latents = ("x[t]", *plan.memories, "f")
    middle = ["blocks.0.hook_resid_mid"] * len(plan.fits)
    hooks = ("hook_embed", *middle, "blocks.0.hook_resid_post")
    axes = torch.eye(plan.width, dtype=torch.float64)
    directions = dict(zip(latents, axes, strict=True))
    return Mechanism(tuple(parts), directions, dict(zip(latents, hooks, strict=True)))


def _certificate(plan: _Plan) -> Certificate:
    net, task, L = plan.net, plan.task, plan.task.f.lipschitz
    slots = [plan.slot(i) for i in range(len(plan.fits))]
    rounding = net.rounding(plan.sizes, _UNIT)
    parts = {f"slot of {name}": slot for name, slot in zip(plan.memories, slots, strict=True)}
    if plan.normalizer == "softmax":
        for i, name in enumerate(plan.memories):
            settling = plan.kernel_errors(i)
            parts[f"burn-in of {name}"] = plan.bound * float(settling.max() - settling.min())
    parts |= {"Lipschitz constant": L, "readout": net.error, "rounding of the readout": rounding}
    spread = plan.spread()
    errors = [0.0] * (len(plan.reads) - len(slots)) + slots
    moved = [error + spread for error in errors]
    turned = net.rounding(plan.sizes, _UNIT, width=plan.width, reach=plan.reach)
    domain = (
        f"inputs |x| ≤ {plan.bound:g} of at most {task.length} positions, "
        f"at positions ≥ {plan.start}"
    )
    return Certificate(
        net.passed_on(errors, L) + net.error + rounding,
        parts,
        domain,
        error_in_any_basis=net.passed_on(moved, L) + net.error + turned + spread,
    )
