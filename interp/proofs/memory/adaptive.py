"""The constructive proof for `memory` Task II as weights (§1.4): R rounds in R + 1 layers.

    layer 0       no attention; FFN: the first locations t_1 = g_1(a_t), from the token
    layer r       attention: the values at the locations of round r; score p_h t_i − p_h s, no
                  normaliser: Σ_h a_h e^{−p_h (s − t_i)} ≈ 1[s = t_i]
                  FFN: the locations of round r + 1, or f after the last round

The location is a query-side scalar against a constant key, so the score needs content, but only a
scalar of it; ``gate="dot"`` computes the same number with W_Q and W_K. With a_h = a′_h e^{−p_h T}
and T the largest location, a′_h selects lag T at s + T − t_i: one fit serves all locations. FFNs
are ramps (:mod:`interp.proofs.memory.fixed`), so a round's errors are removed before the next round
reads the values; without that, errors of locations would grow by a factor of 10¹¹ per round.

Values must be ±1. The construction shows that R + 1 layers suffice, not that they are needed, nor
that trained models run one round per layer.

The plan checks that the errors stay under the margin in every round (`memory` §1.4). Every round
sums exponentials again, so every round has a slot error ε (fit and rounding), the same for all. The
next locations read ``bits`` slots, the answer one per memory, and both sums of errors must stay
under 1/2 (:mod:`interp.proofs.memory.fixed`). Then locations are integers up to the rounding δ of
the ramps, and errors do not accumulate over rounds. In a rotated basis the heads' rounding reaches
every slot, including the values that the next layer reads: each slot has an error of ε + 2 (1 + ε)
Σ_layers (rounding), and f has the error of the ramps' rounding there, because the last FFN clears
its slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Literal, get_args

import mpmath
import numpy as np
import torch
from jaxtyping import Float64

from interp.errors import Problems
from interp.hooks.site import Site
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import LagFit
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model
from interp.proofs.memory.fixed import MARGIN, CornerTable
from interp.proofs.memory.rounding import Summation, select_lag, slot_error, sum_rounding
from interp.tasks.memory import AdaptiveMemory


@dataclass(frozen=True)
class AdaptiveSlots:
    """The residual coordinate of each memory of a task, and the round in which it is fetched.

    Attributes:
        task: The task that is solved.
        at: Latent → coordinate; for an address a[…] that of its first bit, and the others follow.
        width: The number of coordinates.
    """

    task: AdaptiveMemory
    at: dict[str, int] = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        task, at = self.task, {"x[t]": 0, "a[t]": 1}
        free = 1 + task.bits
        for i in range(1, task.memory_count + 1):
            at |= {f"t_{i}": free, f"x[t-t_{i}]": free + 1}
            free += 2
            if self.points(i):
                at[f"a[t-t_{i}]"] = free
                free += task.bits
        object.__setattr__(self, "at", at | {"f": free})
        object.__setattr__(self, "width", free + 1)

    @property
    def rounds(self) -> list[tuple[int, ...]]:
        """The memories that each sequential round fetches; layer r does round r, layer 0 none."""
        task = self.task
        nested: list[tuple[int, ...]] = [(i,) for i in range(1, task.rounds + 1)]
        together = tuple(range(task.rounds + 1, task.memory_count + 1))
        return [*nested, together] if together else nested

    def points(self, memory: int) -> bool:
        """Return whether the address fetched with this memory (counted from 1) determines a later
        location."""
        return memory <= self.task.rounds and memory < self.task.memory_count

    def bits(self, address: str) -> range:
        """Return the coordinates of an address."""
        return range(self.at[address], self.at[address] + self.task.bits)

    def pointer(self, layer: int) -> str:
        """Return the name of the address from which this layer's FFN reads the next locations."""
        return f"a[t-t_{layer}]" if layer else "a[t]"

    def copy_pairs(self, memory: int) -> list[tuple[int, int]]:
        """Return the pairs (coordinate read, coordinate written) of what a memory's heads copy."""
        pairs = [(self.at["x[t]"], self.at[f"x[t-t_{memory}]"])]
        if self.points(memory):
            pairs += zip(self.bits("a[t]"), self.bits(f"a[t-t_{memory}]"), strict=True)
        return pairs


Readouts = list[tuple[CornerTable, Sequence[int], int]]


@dataclass(frozen=True)
class AdaptivePlan:
    """The choices for a construction, made before its weights are written.

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
        """The coordinate of each latent, and the rounds of the layers."""
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
        """Return, for a layer's FFN, each table with the coordinates that it reads and the one it
        writes."""
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
        """Return a bound on the error (fit and rounding) of a coordinate that holds a fetched
        value."""
        return slot_error(self.fit, _evaluation(self.task, self.unit, dense=False))

    def turned_slot(self) -> float:
        """Return the same bound for any basis, including the rounding that other layers leave in
        the slot."""
        how, error = _evaluation(self.task, self.unit, dense=True), self.fit.fit_error
        heads = [len(memories) for memories in self.slots.rounds]
        one = sum_rounding(self.fit.slopes, self.fit.coefficients, how)
        return error + 2 * (1 + error) * sum(heads) * one

    def sums(self, slot: float) -> dict[str, float]:
        """Return the error of each readout's linear forms if each slot has an error of ``slot``."""
        nested = [i for memories in self.slots.rounds[1:] for i in memories]
        at_locations = {f"summed error at t_{i}": self.task.bits * slot for i in nested}
        return at_locations | {"summed error at f": self.task.memory_count * slot}

    def certificate(self) -> Certificate:
        """Return the certificate: the rounding of the readout, given that every margin holds."""
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
    """Choose the sum of exponentials with which a constructed adaptive memory selects lags.

    If the error margins hold in any rotation of the residual basis, this is the fit that is best in
    the worst basis. Otherwise it is the best fit for the basis in which each variable has its own
    coordinate.

    Args:
        task: The task that the construction solves.
        unit: The unit roundoff of the model's dtype.

    Raises:
        ArgumentError: if a margin does not hold in the latter basis either; the message has the
            errors.
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


def _evaluation(task: AdaptiveMemory, unit: float, dense: bool) -> Summation:
    width = AdaptiveSlots(task).width if dense else 0
    together, reach = max(task.concurrent, 1), _reach(task)
    tables = [CornerTable.of_locations(lags, task.bits) for lags in task.location_tables()]
    off = max(table.rounding(unit, width=width, reach=reach if dense else 0.0) for table in tables)
    longest = max(task.locations)
    return Summation(
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
    """Return a bound on the residual stream's norm: tokens, fetched values with errors, locations
    and f."""
    contents = 1.5**2 * task.memory_count * (1 + task.bits)
    locations = task.memory_count * max(task.locations) ** 2
    f = max(map(abs, CornerTable.of(task.f).values.values())) ** 2
    return 1.1 * sqrt(1 + task.bits + contents + locations + f)


Gate = Literal["scalar", "dot"]


def construct_adaptive_memory(
    task: AdaptiveMemory,
    *,
    gate: Gate = "scalar",
    dtype: Literal["float64", "float32"] = "float64",
) -> Construction:
    """Build a model of R + 1 layers that computes the task exactly, up to rounding.

    Latents of several channels (addresses) have one direction per channel, ``a[t-t_1] bit 0`` ….

    Args:
        task: A task whose values are ±1.
        gate: How the location enters the score: ``scalar`` ⟨w_h, x_t⟩, or ``dot`` by a product of
            queries with constant keys.
        dtype: Dtype of the model.

    Raises:
        ArgumentError: if the values are Gaussian, or the locations cannot be distinguished well
            enough in the dtype; the message has the coordinates' errors and the margins that they
            exceed.
    """
    problems = Problems("construct_adaptive_memory")
    signs = task.inputs == "signs"
    problems.need(signs, "inputs", "must be signs: ramps read ±1", task.inputs, "use signs")
    rule = f"must be one of {', '.join(get_args(Gate))}"
    problems.need(gate in get_args(Gate), "gate", rule, gate, "pick one")
    rule = "must be float64 or float32"
    problems.need(dtype in ("float64", "float32"), "dtype", rule, dtype, "use float64")
    problems.raise_if_any()
    plan = plan_adaptive(task, 2.0**-53 if dtype == "float64" else 2.0**-24)
    model = zero_model(_spec(plan, gate, dtype))
    with torch.no_grad():
        model.embed.W_E.copy_(torch.eye(1 + task.bits, plan.slots.width))
        for layer, memories in enumerate(plan.slots.rounds, start=1):
            _write_heads(model, plan, layer, memories)
        for layer, block in enumerate(model.blocks):
            first = 0
            for table, reads, slot in plan.readouts(layer):
                table.write(block.mlp, reads, slot, first)
                first += table.neurons
        model.unembed.W_U[plan.slots.at["f"], 0] = 1
    name = f"constructed-{task.name}" if gate == "scalar" else f"constructed-dot-{task.name}"
    return Construction(name, task, model, _mechanism(plan), plan.certificate())


def _spec(plan: AdaptivePlan, gate: Gate, dtype: Literal["float64", "float32"]) -> TransformerSpec:
    task, rounds = plan.task, plan.slots.rounds
    heads = len(plan.fit.slopes)
    ffn = [sum(t.neurons for t, _, _ in plan.readouts(r)) for r in range(len(rounds) + 1)]
    return TransformerSpec(
        input="real",
        d_in=1 + task.bits,
        d_out=1,
        n_ctx=task.length,
        d_model=plan.slots.width,
        n_layers=len(rounds) + 1,
        n_heads=(0, *(heads * len(memories) for memories in rounds)),
        d_head=(1, *(len(plan.slots.copy_pairs(memories[0])) for memories in rounds)),
        ffn=tuple((width,) for width in ffn),
        score="dot" if gate == "dot" else "scalar_gate",
        lag_bias="lin",
        normalizer="none",
        dtype=dtype,
    )


def _write_heads(
    model: SequenceTransformer, plan: AdaptivePlan, layer: int, memories: tuple[int, ...]
) -> None:
    attn, head = model.blocks[layer].attn, 0
    scale = sqrt(model.spec.head_widths[layer])
    for memory in memories:
        location = plan.slots.at[f"t_{memory}"]
        for slope, coefficient in zip(plan.fit.slopes, plan.coefficients, strict=True):
            attn.terms["lag"].p[head] = float(slope)
            if "gate" in attn.terms:
                attn.terms["gate"].w[head, location] = float(slope)
            else:
                attn.W_Q[head, location, 0] = float(slope) * scale
                attn.b_K[head, 0] = 1
            for channel, (source, target) in enumerate(plan.slots.copy_pairs(memory)):
                attn.W_V[head, source, channel] = 1
                attn.W_O[head, channel, target] = float(coefficient)
            head += 1


def _mechanism(plan: AdaptivePlan) -> Mechanism:
    slots, parts = plan.slots, []
    for layer, memories in enumerate(slots.rounds, start=1):
        heads = [memory for memory in memories for _ in plan.fit.slopes]
        for head, memory in enumerate(heads):
            target = f"x[t-t_{memory}]"
            parts.append(Part("head", layer, head, "memory-location", target, round=layer))
        for memory in memories:
            parts.append(Part("ffn", layer - 1, None, "readout", f"t_{memory}", round=layer))
    last = len(slots.rounds)
    parts.append(Part("ffn", last, None, "readout", "f"))
    embed, after = Site(-1, "embed").name, Site(last, "resid_post").name
    written = {"x[t]": embed, "a[t]": embed, "f": after}
    for layer, memories in enumerate(slots.rounds, start=1):
        for i in memories:
            written[f"t_{i}"] = Site(layer - 1, "resid_post").name
            written[f"x[t-t_{i}]"] = written[f"a[t-t_{i}]"] = Site(layer, "resid_mid").name
    axes = torch.eye(slots.width, dtype=torch.float64)
    directions, hooks = {}, {}
    for latent, first in slots.at.items():
        address = latent.startswith("a[")
        for bit in range(plan.task.bits if address else 1):
            name = f"{latent} bit {bit}" if address else latent
            directions[name], hooks[name] = axes[first + bit], written[latent]
    return Mechanism(tuple(parts), directions, hooks)
