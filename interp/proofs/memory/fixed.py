"""The constructive proof for `memory` Task I as weights (§1.4).

    attention   each memory T_i has T_i + 1 dot-product-free heads: Σ_h a_h e^{−p_h s} ≈ 1[s = T_i]
                writes x_{t−T_i} into its own residual slot
    FFN         one clipped ramp per corner of {−1, +1}^{M+1}

While the slots' errors sum to less than 1/2 every ramp is exactly 0 or 1, so the errors are
removed, not passed on. The certificate checks that margin and adds the rounding of the readout.

Use it as ground truth for detectors and as the reference for a trained model. It does not model how
gradient descent solves the task: its heads work only in signed combinations.

*Functions of ±1 as ReLUs*: one clipped ramp per corner of the cube (`memory` §1.4).

    f(u) = base + Σ_c (f(c) − base) [relu(v_c) − relu(v_c − 1)],   v_c = ⟨c, u⟩ − (n − 3/2)

At a corner ⟨c, u⟩ = n, at any other it is at most n − 2: while the arguments' errors sum to less
than 1/2, the ramp of the right corner is 1 and every other one 0. Two more neurons clear the slot
that f is written to. In a basis of slots it is empty; in a rotated basis the rounding of all heads
reaches every slot, and a location with an error of 10⁻² is useless to the next layer. n arguments
cost up to 2^{n+1} neurons: this is for tables, not for functions with structure.

*Adaptive memory without content in the scores*, by the same heads: fetch all candidates and let the
FFN choose one.

    attention   for each of the A locations T a group of T + 1 dot-product-free heads: x_{t−T}
    FFN         y = Σ_address 1[a_t = address] f(x_t, x_{t−g_1(address)}, …): a ramp for every
                address and every corner of f's arguments

This takes one layer and is exact. It does not contradict the paper's theorem, which concerns
attention without such gating. What counts is the cost: the number of heads grows with the *sum* of
the locations, against their largest for a shifted kernel, and the margin must hold for the farthest
candidate in both cases. It works only for locations that depend on x_t's own address (R = 1); each
further round would multiply the number of addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

import numpy as np
import torch

from interp.errors import Problems
from interp.models.ffn import FFN
from interp.proofs.lagfits import LagFit
from interp.proofs.mechanism import Certificate, Construction
from interp.proofs.memory.one_layer import HeadGroup, one_layer
from interp.proofs.memory.rounding import (
    Summation,
    read_error,
    select_lag,
    slot_error,
    sum_rounding,
)
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from interp.tasks.memory.readouts import Readout

MARGIN = 0.5


@dataclass(frozen=True)
class CornerTable:
    """The value of f at every corner of {−1, +1}^n, as a table.

    Attributes:
        values: Corner → value of f.
    """

    values: Mapping[tuple[int, ...], float]

    @classmethod
    def of(cls, readout: Readout) -> CornerTable:
        """Return the table of a task's readout (Boolean or real) on arguments of ±1."""
        corners = list(product((-1, 1), repeat=readout.n))
        columns = torch.tensor(corners, dtype=torch.float32).T[:, None]
        values = readout(list(columns))[0].tolist()
        return cls(dict(zip(corners, values, strict=True)))

    @classmethod
    def of_locations(cls, lags: Sequence[int], bits: int) -> CornerTable:
        """Tabulate a location function g_i, which maps a binary address to a lag.

        Args:
            lags: The lag of each address 0, 1, …, 2^bits − 1.
            bits: The number of address bits. Bit values 0 and 1 are the coordinates −1 and 1, and
                the first coordinate is the most significant bit.

        Raises:
            ValueError: if there are not exactly 2^bits lags.
        """
        corners = product((-1, 1), repeat=bits)
        return cls(dict(zip(corners, map(float, lags), strict=True)))

    @property
    def n(self) -> int:
        """The number of arguments."""
        return len(next(iter(self.values)))

    @property
    def base(self) -> float:
        """The least value of f."""
        return float(min(self.values.values()))

    @property
    def span(self) -> float:
        """The difference between the largest and the least value of f."""
        return float(max(self.values.values())) - self.base

    @property
    def neurons(self) -> int:
        """The number of neurons: two per corner above the base, and two that clear the slot."""
        return 2 * len(self._steps) + 2

    @property
    def _steps(self) -> list[tuple[tuple[int, ...], float]]:
        return [(c, f - self.base) for c, f in self.values.items() if f > self.base]

    def write(self, ffn: FFN, reads: Sequence[int], slot: int, first: int) -> None:
        """Write the table into an FFN with one hidden layer, from neuron ``first`` on.

        Args:
            ffn: The FFN whose weights are written.
            reads: The coordinates of the arguments.
            slot: Coordinate that holds f afterwards, whatever it held before.
            first: The number of the first neuron that is used.
        """
        neuron = first
        for corner, step in self._steps:
            write_ramp(ffn, dict(zip(reads, corner, strict=True)), step, slot, neuron)
            neuron += 2
        for sign in (1.0, -1.0):
            ffn.W_in[slot, neuron] = sign
            ffn.W_out[neuron, slot] = -sign
            neuron += 1
        ffn.b_out[slot] = self.base

    def rounding(self, unit: float, *, width: int = 0, reach: float = 0.0) -> float:
        """Return a bound on the rounding error of f while errors stay under the margin (see
        :func:`ramp_rounding`)."""
        return ramp_rounding(self.n, self.base, self.span, unit, width=width, reach=reach)


def ramp_rounding(
    n: int, base: float, span: float, unit: float, *, width: int = 0, reach: float = 0.0
) -> float:
    """Return a bound on the rounding error of a value computed by ramps of ``n`` arguments.

    Two ReLUs of one linear form are active, the rest are exactly 0. Each is a sum of n + 1 terms,
    of total size 2n, weighted by at most ``span``; v is at most 2.

    Args:
        n: The number of arguments.
        base: The value where every ramp is 0.
        span: The largest height of a ramp.
        unit: The unit roundoff of the floating-point format.
        width: Width of the residual stream, if the basis is a rotated one.
        reach: A bound on the residual stream's norm, in the same case.
    """
    form, clear, spread = float((n + 2) * 2 * n), 0.0, 4.0
    if width:
        form = 2 * read_error(width) * (reach * sqrt(n) + n)
        clear, spread = 2 * read_error(width) * reach, 8.0 + 2 * width
    size = abs(base) + 3 * span + reach
    return unit * (2 * span * form + clear + spread * size)


def write_ramp(ffn: FFN, corner: Mapping[int, int], step: float, slot: int, neuron: int) -> None:
    """Write two neurons that add ``step`` to ``slot`` if the coordinates have the values in
    ``corner``.

    Args:
        ffn: The FFN that is written.
        corner: Coordinate → its value, 1 or −1.
        step: The value that is added.
        slot: The coordinate that it is added to.
        neuron: The number of the first neuron.
    """
    coordinates, signs = list(corner), torch.tensor(list(corner.values()), dtype=ffn.W_in.dtype)
    for at, shift, sign in ((neuron, 0.0, 1.0), (neuron + 1, 1.0, -1.0)):
        ffn.W_in[coordinates, at] = signs
        ffn.b_in[at] = -(len(corner) - 1.5) - shift
        ffn.W_out[at, slot] = sign * step


_UNIT = 2.0**-53


def construct_fixed_memory(task: FixedMemory) -> Construction:
    """Build a float64 model that computes the task exactly, up to rounding.

    Residual slots: 0 holds x_t, 1 … M the memories, M + 1 the answer.

    Raises:
        ArgumentError: if a lag cannot be selected well enough in float64; the message has the
            errors.
    """
    plan = _plan(task)
    answer = plan.width - 1
    slots = {name: at for at, name in enumerate((*task.arguments, "f"))}
    model, mechanism = one_layer(
        _groups(plan.fits), slots, length=task.length, ffn=(plan.table.neurons,)
    )
    with torch.no_grad():
        plan.table.write(model.blocks[0].mlp, range(answer), answer, 0)
    return Construction(
        name=f"constructed-{task.name}",
        task=task,
        model=model,
        mechanism=mechanism,
        certificate=_certificate(plan),
    )


def _groups(fits: Sequence[LagFit]) -> list[HeadGroup]:
    return [HeadGroup(f"x[t-{fit.lag}]", fit.slopes, fit.coefficients, fit.lag) for fit in fits]


@dataclass(frozen=True)
class _FixedPlan:
    """The choices for a construction: a fit per memory and the table of f.

    Attributes:
        task: The task.
        fits: The fit of each lag.
        table: The values of f.
        turned: Whether the margin holds in any basis.
    """

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
        """Return, for each memory, a bound on the error (fit and rounding) of its residual
        coordinate."""
        how = [_evaluation(self.task, len(fit.slopes)) for fit in self.fits]
        return [slot_error(fit, one) for fit, one in zip(self.fits, how, strict=True)]

    def turned_sum(self) -> float:
        """Return a bound on the error of the readout's linear forms in a rotated basis."""
        how = _evaluation(self.task, self.heads, width=self.width)
        p = np.concatenate([fit.slopes for fit in self.fits])
        a = np.concatenate([fit.coefficients for fit in self.fits])
        spread = sum_rounding(p, a, how)
        return sum(fit.fit_error for fit in self.fits) + sqrt(self.width) * spread


def _plan(task: FixedMemory) -> _FixedPlan:
    """Choose fits for the worst basis if they keep the margin there, else for the basis of the
    slots."""
    values = {corner: float(f) for corner, f in task.truth_table().items()}
    table, slots = CornerTable(values), len(task.lags) + 2
    heads = sum(lag + 1 for lag in task.lags)
    dense = _evaluation(task, heads, width=slots)
    plan = _FixedPlan(task, tuple(select_lag(lag, dense) for lag in task.lags), table, turned=True)
    if plan.turned_sum() >= MARGIN:
        fits = tuple(select_lag(lag, _evaluation(task, lag + 1)) for lag in task.lags)
        plan = _FixedPlan(task, fits, table, turned=False)
    _check_margin(plan)
    return plan


def _evaluation(task: FixedMemory, heads: int, width: int = 0) -> Summation:
    reach = 2 * sqrt(len(task.lags) + 2)
    return Summation(_UNIT, keys=task.length, heads=heads, width=width, reach=reach)


def _check_margin(plan: _FixedPlan) -> None:
    problems, errors = Problems("construct_fixed_memory"), plan.slots()
    lags = plan.task.lags
    told = ", ".join(f"lag {lag}: {error:.2g}" for lag, error in zip(lags, errors, strict=True))
    rule = f"must be selectable with a summed error below {MARGIN} in float64 ({told})"
    problems.need(sum(errors) < MARGIN, "lags", rule, lags, "use smaller lags")
    problems.raise_if_any()


def _certificate(plan: _FixedPlan) -> Certificate:
    """Bound the readout's own rounding, which is the only error while slot errors stay under the
    margin."""
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


def construct_gated_memory(task: AdaptiveMemory) -> Construction:
    """Build a float64 model of one layer without dot products that computes the task exactly.

    Args:
        task: A task with values of ±1 and one sequential round.

    Raises:
        ArgumentError: for other tasks, or if a candidate cannot be selected well enough.
    """
    _check_rounds(task)
    fits = {lag: select_lag(lag, _gated_evaluation(task, lag)) for lag in sorted(task.locations)}
    errors = {lag: slot_error(fit, _gated_evaluation(task, lag)) for lag, fit in fits.items()}
    _check_selectable(task, errors)
    names = ["x[t]", *(f"x[t-{lag}]" for lag in fits)]
    answer = task.bits + len(names)
    slots = dict(zip((*names, "f"), (0, *range(1 + task.bits, answer + 1)), strict=True))
    ramps, base = _ramps(task, slots)
    model, mechanism = one_layer(
        _groups([*fits.values()]),
        slots,
        length=task.length,
        ffn=(2 * len(ramps),),
        d_in=1 + task.bits,
    )
    with torch.no_grad():
        for number, (corner, step) in enumerate(ramps):
            write_ramp(model.blocks[0].mlp, corner, step, answer, 2 * number)
        model.blocks[0].mlp.b_out[answer] = base
    certificate = _gated_certificate(task, errors)
    return Construction(f"gated-{task.name}", task, model, mechanism, certificate)


def _check_rounds(task: AdaptiveMemory) -> None:
    problems = Problems("construct_gated_memory")
    rule, advice = "must make one sequential round with concurrent", "use construct_adaptive_memory"
    rounds = (task.rounds, task.concurrent)
    problems.need(task.sequential_rounds == 1, "rounds", rule, rounds, advice)
    signs = task.inputs == "signs"
    problems.need(signs, "inputs", "must be signs: ramps read ±1", task.inputs, "use signs")
    problems.raise_if_any()


def _check_selectable(task: AdaptiveMemory, errors: dict[int, float]) -> None:
    problems = Problems("construct_gated_memory")
    told = ", ".join(f"lag {lag}: {error:.2g}" for lag, error in errors.items())
    rule = f"must be selectable with summed errors below {MARGIN} in float64 ({told})"
    summed = task.memory_count * max(errors.values())
    problems.need(summed < MARGIN, "locations", rule, task.locations, "use smaller locations")
    problems.raise_if_any()


def _gated_evaluation(task: AdaptiveMemory, lag: int) -> Summation:
    return Summation(_UNIT, keys=task.length, heads=lag + 1)


def _ramps(
    task: AdaptiveMemory, slots: Mapping[str, int]
) -> tuple[list[tuple[dict[int, int], float]], float]:
    """Return (coordinate → sign, height) of every ramp, and the value where all ramps are 0."""
    table, tables = CornerTable.of(task.f), task.location_tables()
    ramps = []
    for code, address in enumerate(product((-1, 1), repeat=task.bits)):
        reads = [0, *(slots[f"x[t-{lags[code]}]"] for lags in tables)]
        for corner, f in table.values.items():
            if f > table.base:
                at = dict(zip(range(1, 1 + task.bits), address, strict=True))
                ramps.append((at | dict(zip(reads, corner, strict=True)), f - table.base))
    return ramps, table.base


def _gated_certificate(task: AdaptiveMemory, errors: dict[int, float]) -> Certificate:
    summed = task.memory_count * max(errors.values())
    table = CornerTable.of(task.f)
    rounding = ramp_rounding(task.bits + table.n, table.base, table.span, _UNIT)
    parts = {f"slot of lag {lag}": error for lag, error in errors.items()}
    parts |= {"summed error at f": summed, "margin": MARGIN, "rounding of the readout": rounding}
    domain = (
        f"every input of ±1 of at most {task.length} positions, "
        f"at positions ≥ {max(task.locations)}"
    )
    return Certificate(rounding, parts, domain)
