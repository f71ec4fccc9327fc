"""Adaptive memory without content in the scores: fetch all candidates and let the FFN choose one.

    attention   for each of the A locations T a group of T + 1 dot-product-free heads: x_{t−T}
    FFN         y = Σ_address 1[a_t = address] f(x_t, x_{t−g_1(address)}, …): a ramp for every
                address and every corner of f's arguments

One layer, exact, and no contradiction to the paper's theorem, which concerns attention without such
gating. The honest comparison is the cost: heads grow with the *sum* of the locations, against their
largest for a shifted kernel, and the margin must hold for the farthest candidate anyway. Only for
locations that depend on x_t's own address (R = 1); each further round would multiply the addresses.
"""

from __future__ import annotations

from itertools import product

import torch

from interp.errors import Problems
from interp.hooks.site import Site
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import LagFit
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model
from interp.proofs.memory.fixed import MARGIN, CornerTable, ramp_rounding, write_ramp
from interp.proofs.memory.rounding import Summation, select_lag, slot_error
from interp.tasks.memory import AdaptiveMemory

_UNIT = 2.0**-53


def construct_gated_memory(task: AdaptiveMemory) -> Construction:
    """A float64 model of one layer without dot products that computes the task exactly.

    Args:
        task: A task with values of ±1 and one sequential round.

    Raises:
        ArgumentError: for other tasks, or if a candidate cannot be selected well enough.
    """
    _check(task)
    fits = {lag: select_lag(lag, _evaluation(task, lag)) for lag in sorted(task.locations)}
    errors = {lag: slot_error(fit, _evaluation(task, lag)) for lag, fit in fits.items()}
    _check_margin(task, errors)
    slots = {lag: 1 + task.bits + i for i, lag in enumerate(fits)}
    answer = 1 + task.bits + len(slots)
    ramps, base = _ramps(task, slots)
    spec = TransformerSpec(
        input="real",
        d_in=1 + task.bits,
        d_out=1,
        n_ctx=task.length,
        d_model=answer + 1,
        n_layers=1,
        n_heads=sum(lag + 1 for lag in fits),
        d_head=1,
        ffn=(2 * len(ramps),),
        score="none",
        lag_bias="lin",
        normalizer="none",
        dtype="float64",
    )
    model = zero_model(spec)
    with torch.no_grad():
        model.embed.W_E.copy_(torch.eye(1 + task.bits, answer + 1))
        parts = _write_heads(model, fits, slots)
        for number, (corner, step) in enumerate(ramps):
            write_ramp(model.blocks[0].mlp, corner, step, answer, 2 * number)
        model.blocks[0].mlp.b_out[answer] = base
        model.unembed.W_U[answer, 0] = 1
    mechanism = _mechanism([*parts, Part("ffn", 0, None, "readout", "f")], slots, answer)
    return Construction(f"gated-{task.name}", task, model, mechanism, _certificate(task, errors))


def _check(task: AdaptiveMemory) -> None:
    problems = Problems("construct_gated_memory")
    rule, advice = "must make one sequential round with concurrent", "use construct_adaptive_memory"
    rounds = (task.rounds, task.concurrent)
    problems.need(task.sequential_rounds == 1, "rounds", rule, rounds, advice)
    signs = task.inputs == "signs"
    problems.need(signs, "inputs", "must be signs: ramps read ±1", task.inputs, "use signs")
    problems.raise_if_any()


def _check_margin(task: AdaptiveMemory, errors: dict[int, float]) -> None:
    problems = Problems("construct_gated_memory")
    told = ", ".join(f"lag {lag}: {error:.2g}" for lag, error in errors.items())
    rule = f"must be selectable with summed errors below {MARGIN} in float64 ({told})"
    summed = task.memory_count * max(errors.values())
    problems.need(summed < MARGIN, "locations", rule, task.locations, "use smaller locations")
    problems.raise_if_any()


def _evaluation(task: AdaptiveMemory, lag: int) -> Summation:
    return Summation(_UNIT, keys=task.length, heads=lag + 1)


def _write_heads(
    model: SequenceTransformer, fits: dict[int, LagFit], slots: dict[int, int]
) -> list[Part]:
    attn = model.blocks[0].attn
    parts: list[Part] = []
    for lag, fit in fits.items():
        for slope, coefficient in zip(fit.slopes, fit.coefficients, strict=True):
            head = len(parts)
            attn.terms["lag"].p[head] = float(slope)
            attn.W_V[head, 0, 0] = 1
            attn.W_O[head, 0, slots[lag]] = float(coefficient)
            parts.append(Part("head", 0, head, "memory-location", f"x[t-{lag}]", lag))
    return parts


def _ramps(
    task: AdaptiveMemory, slots: dict[int, int]
) -> tuple[list[tuple[dict[int, int], float]], float]:
    """(coordinate → sign, height) of every ramp, and the value without any."""
    table, tables = CornerTable.of(task.f), task.location_tables()
    ramps = []
    for code, address in enumerate(product((-1, 1), repeat=task.bits)):
        reads = [0, *(slots[lags[code]] for lags in tables)]
        for corner, f in table.values.items():
            if f > table.base:
                at = dict(zip(range(1, 1 + task.bits), address, strict=True))
                ramps.append((at | dict(zip(reads, corner, strict=True)), f - table.base))
    return ramps, table.base


def _mechanism(parts: list[Part], slots: dict[int, int], answer: int) -> Mechanism:
    axes = torch.eye(answer + 1, dtype=torch.float64)
    directions = {"x[t]": axes[0]} | {f"x[t-{lag}]": axes[at] for lag, at in slots.items()}
    middle = {f"x[t-{lag}]": Site(0, "resid_mid").name for lag in slots}
    written = {"x[t]": Site(-1, "embed").name} | middle | {"f": Site(0, "resid_post").name}
    return Mechanism(tuple(parts), directions | {"f": axes[answer]}, written)


def _certificate(task: AdaptiveMemory, errors: dict[int, float]) -> Certificate:
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
