"""Check that an adaptive memory's errors stay under the margin in every round (`memory` §1.4).

Every round adds up exponentials again, so every round has a slot error ε (fit and rounding), the
same for all: the next locations read ``bits`` slots, the answer one a memory. Both sums must stay
under 1/2 (:mod:`interp.proofs.memory.corners`). Then locations are integers up to the rounding δ of
the ramps, and nothing compounds. In a turned basis the heads' rounding reaches every slot, the
values that the next layer reads included: each slot is off by ε + 2 (1 + ε) Σ_layers (rounding),
and f is off by as much as the ramps round there, because the last FFN clears its slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import mpmath
import numpy as np
from jaxtyping import Float64

from interp.errors import Problems
from interp.proofs.lagfits import LagFit
from interp.proofs.mechanism import Certificate
from interp.proofs.memory.corners import MARGIN, CornerTable
from interp.proofs.memory.rounding import Evaluation, sum_rounding
from interp.proofs.memory.selection import select_lag, slot_error
from interp.proofs.memory.slots import AdaptiveSlots
from interp.tasks.memory import AdaptiveMemory

__all__ = ["AdaptivePlan", "plan_adaptive"]

Readouts = list[tuple[CornerTable, Sequence[int], int]]


@dataclass(frozen=True)
class AdaptivePlan:
    """What is decided about a construction before its weights are written.

    Attributes:
        task: The task that the construction solves.
        unit: The unit roundoff of the model's dtype.
        fit: The sum that selects lag T, the largest location.
        turned: Whether the margins hold in any rotated basis too.
    """

    task: AdaptiveMemory
    unit: float
    fit: LagFit
    turned: bool

    @property
    def slots(self) -> AdaptiveSlots:
        """Which coordinate holds what, and which layer does which round."""
        return AdaptiveSlots(self.task)

    @property
    def coefficients(self) -> Float64[np.ndarray, " head"]:
        """The coefficients a_h = a′_h e^{−p_h T}, computed in extended precision."""
        heads = zip(self.fit.coefficients, self.fit.slopes, strict=True)
        with mpmath.workdps(40):
            return np.array(
                [float(a * mpmath.exp(-mpmath.mpf(p) * self.fit.lag)) for a, p in heads]
            )

    def readouts(self, layer: int) -> Readouts:
        """For a layer's FFN: each table, the coordinates that it reads and the one it writes."""
        slots, task = self.slots, self.task
        if layer == len(slots.rounds):
            reads = [slots.at[name] for name in task.arguments]
            return [(CornerTable.of(task.f), reads, slots.at["f"])]
        tables, bits = task.location_tables(), slots.bits(slots.pointer(layer))
        return [
            (CornerTable.of_locations(tables[i - 1], task.bits), bits, slots.at[f"t_{i}"])
            for i in slots.rounds[layer]
        ]

    def slot(self) -> float:
        """A bound on the error of a fetched content's coordinate."""
        return slot_error(self.fit, _evaluation(self.task, self.unit, dense=False))

    def turned_slot(self) -> float:
        """The same bound in any basis, including what the other layers leave there."""
        how, error = _evaluation(self.task, self.unit, dense=True), self.fit.fit_error
        heads = [len(memories) for memories in self.slots.rounds]
        one = sum_rounding(self.fit.slopes, self.fit.coefficients, how)
        return error + 2 * (1 + error) * sum(heads) * one

    def sums(self, slot: float) -> dict[str, float]:
        """How far the linear forms of each readout are off when a slot is off by ``slot``."""
        nested = [i for memories in self.slots.rounds[1:] for i in memories]
        at_locations = {f"summed error at t_{i}": self.task.bits * slot for i in nested}
        return at_locations | {"summed error at f": self.task.memory_count * slot}

    def certificate(self) -> Certificate:
        """The certificate: the rounding of the readout, given that every margin holds."""
        task, (table, *_) = self.task, self.readouts(len(self.slots.rounds))[0]
        slot, rounding = self.slot(), table.rounding(self.unit)
        memories = range(1, task.memory_count + 1)
        parts = {f"slot of x[t-t_{i}]": slot for i in memories} | self.sums(slot)
        parts |= {"margin": MARGIN, "rounding of the readout": rounding}
        turned = None
        if self.turned:
            turned_slot = self.turned_slot()
            n = task.memory_count + 1
            parts["summed error at f in any basis"] = n * turned_slot
            width = self.slots.width
            turned = table.rounding(self.unit, width=width, reach=_reach(task))
        domain = (
            f"every input of ±1 of at most {task.length} positions, "
            f"at positions ≥ {max(task.locations)}"
        )
        return Certificate(rounding, parts, domain, error_in_any_basis=turned)


def plan_adaptive(task: AdaptiveMemory, unit: float) -> AdaptivePlan:
    """The fit for the worst basis if all margins hold there, else the one for the slots' basis.

    Raises:
        ArgumentError: if a margin does not hold, with the numbers.
    """
    longest = max(task.locations)
    dense = AdaptivePlan(task, unit, select_lag(longest, _evaluation(task, unit, True)), True)
    turned = dense.turned_slot()  # x_t and the token's own address are off there, too
    if max(task.bits, task.memory_count + 1) * turned < MARGIN:
        return dense
    plan = AdaptivePlan(task, unit, select_lag(longest, _evaluation(task, unit, False)), False)
    sums = plan.sums(plan.slot())
    problems = Problems("construct_adaptive_memory")
    told = ", ".join(f"{name} {value:.2g}" for name, value in sums.items())
    dtype = "float64" if unit == 2.0**-53 else "float32"
    rule = (
        f"must be told apart in {dtype} with errors that sum to less than {MARGIN} at every "
        f"readout (a slot is off by {plan.slot():.2g}: {told})"
    )
    advice = "use smaller locations, fewer memories or float64"
    problems.need(max(sums.values()) < MARGIN, "locations", rule, task.locations, advice)
    problems.raise_if_any()
    return plan


def _evaluation(task: AdaptiveMemory, unit: float, dense: bool) -> Evaluation:
    width = AdaptiveSlots(task).width if dense else 0
    together, reach = max(task.concurrent, 1), _reach(task)
    tables = [CornerTable.of_locations(lags, task.bits) for lags in task.location_tables()]
    off = max(table.rounding(unit, width=width, reach=reach if dense else 0.0) for table in tables)
    longest = max(task.locations)
    return Evaluation(
        unit,
        keys=task.length,
        heads=(longest + 1) * (together if dense else 1),
        shift=longest,
        location_error=off * (together if dense else 1),
        channels=1 + task.bits if dense else 1,
        width=width,
        reach=reach,
    )


def _reach(task: AdaptiveMemory) -> float:
    """A bound on the residual stream's norm: tokens, contents off by up to 1/2, locations and f."""
    contents = 1.5**2 * task.memory_count * (1 + task.bits)
    locations = task.memory_count * max(task.locations) ** 2
    f = max(map(abs, CornerTable.of(task.f).values.values())) ** 2
    return 1.1 * sqrt(1 + task.bits + contents + locations + f)
