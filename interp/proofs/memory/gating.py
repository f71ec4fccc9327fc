"""Task II without content in the scores: what is lost, and what an FFN that gates costs.

What fixed lags cannot do: a least error of dot-product-free attention on Task II (`memory`
§1.3).

Without content in the scores a layer's heads give Σ_s k(s) x_{t−s} with one kernel for all tokens.
The best such prediction, linear in every channel of every earlier token, has the error

    E y² − (E y)² − Σ_{s, channel} (E[y · x_{t−s, channel}])²

because inputs are independent with mean 0 and variance 1. All expectations are sums over the
addresses that the locations are read from, and over the signs of the values: exact, no sampling.
For y_t = x_{t−t_1} and A locations named equally often this is 1 − 1/A.

The floor concerns attention whose readout is linear. An FFN that gates one group of heads for each
candidate lag gets below it, at a price (:mod:`interp.proofs.memory.gating`).

Adaptive memory without content in the scores: fetch all candidates and let the FFN choose one.

    attention   for each of the A locations T a group of T + 1 dot-product-free heads: x_{t−T}
    FFN         y = Σ_address 1[a_t = address] f(x_t, x_{t−g_1(address)}, …): a ramp for every
                address and every corner of f's arguments

One layer, exact, and no contradiction to the paper's theorem, which concerns attention without such
gating. The honest comparison is the cost: heads grow with the *sum* of the locations, against their
largest for a shifted kernel, and the margin must hold for the farthest candidate anyway. Only for
locations that depend on x_t's own address (R = 1); each further round would multiply the addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch

from interp.errors import Problems
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import LagFit
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model
from interp.proofs.memory.adaptive import construct_adaptive_memory
from interp.proofs.memory.fixed import MARGIN, CornerTable, ramp_rounding, write_ramp
from interp.proofs.memory.rounding import Evaluation, select_lag, slot_error
from interp.tasks.memory import AdaptiveMemory

_MOST_PATHS = 2**16
_LINEAR = ("single", "mean")


@dataclass(frozen=True)
class FixedLagFloor:
    """The error of the best prediction with fixed lags.

    Attributes:
        variance: The variance of y, which is the error of the best constant.
        floor: Mean squared error of the best prediction linear in all channels at all lags.
        weights: (lag, channel) → its coefficient, channel 0 the value; those that are not 0.
    """

    variance: float
    floor: float
    weights: dict[tuple[int, int], float]

    @property
    def share(self) -> float:
        """The least error that fixed lags can reach, as a share of the answer's variance."""
        return self.floor / self.variance


def fixed_lag_floor(task: AdaptiveMemory) -> FixedLagFloor:
    """The least error of a prediction with fixed lags on a task, in closed form.

    Raises:
        ArgumentError: for a nonlinear readout of Gaussian values, whose moments are no finite sum,
            or for more than 2¹⁶ ways in which the locations can fall.
    """
    problems = Problems("fixed_lag_floor")
    exact = task.inputs == "signs" or task.readout in _LINEAR
    rule = f"must be {' or '.join(_LINEAR)} for Gaussian values"
    problems.need(exact, "readout", rule, task.readout, "use inputs of ±1")
    ways = 2 ** (task.bits * task.sequential_rounds)
    rule = f"must give at most {_MOST_PATHS} ways for the locations to fall"
    problems.need(ways <= _MOST_PATHS, "rounds", rule, ways, "fewer rounds or bits")
    problems.raise_if_any()
    mean = square = 0.0
    products: dict[tuple[int, int], float] = defaultdict(float)
    for weight, lags, codes in _paths(task):
        first, second, by_lag = _moments(task, lags)
        mean += weight * first
        square += weight * second
        for lag, moment in by_lag.items():
            products[lag, 0] += weight * moment
        for lag, code in codes.items():
            for channel, bit in enumerate(_signs(code, task.bits), start=1):
                products[lag, channel] += weight * first * bit
    weights = {key: value for key, value in products.items() if abs(value) > 1e-15}
    variance = square - mean**2
    return FixedLagFloor(variance, variance - sum(v**2 for v in weights.values()), weights)


def _paths(task: AdaptiveMemory) -> Iterator[tuple[float, tuple[int, ...], dict[int, int]]]:
    """(probability, t_1 … t_M, lag → address read there) of every way the locations can fall."""
    tables = task.location_tables()

    def walk(
        lags: tuple[int, ...], pointer: int, codes: dict[int, int], weight: float
    ) -> Iterator[tuple[float, tuple[int, ...], dict[int, int]]]:
        if len(lags) == task.memory_count:
            yield weight, lags, codes
            return
        known = pointer in codes
        for code in (codes[pointer],) if known else range(2**task.bits):
            here = weight if known else weight / 2**task.bits
            seen = codes | {pointer: code}
            if len(lags) < task.rounds:
                lag = tables[len(lags)][code]
                yield from walk((*lags, lag), lag, seen, here)
            else:
                rest = tuple(table[code] for table in tables[len(lags) :])
                yield from walk(lags + rest, pointer, seen, here)

    yield from walk((), 0, {}, 1.0)


def _moments(task: AdaptiveMemory, lags: tuple[int, ...]) -> tuple[float, float, dict[int, float]]:
    """E y, E y² and E[y · x_{t−s}] at each lag, given where the memories lie.

    Signs have all the moments that linear readouts of standard normal values need.
    """
    places = sorted({0, *lags})
    corners = torch.tensor(list(product((-1.0, 1.0), repeat=len(places))), dtype=torch.float32)
    at = {lag: corners[:, i][None] for i, lag in enumerate(places)}
    y = task.f([at[lag] for lag in (0, *lags)])[0].double()
    by_lag = {lag: float((y * column[0]).mean()) for lag, column in at.items()}
    return float(y.mean()), float((y**2).mean()), by_lag


def _signs(code: int, bits: int) -> tuple[int, ...]:
    return tuple(2 * (code >> (bits - 1 - b) & 1) - 1 for b in range(bits))


_UNIT = 2.0**-53


def construct_gated_memory(task: AdaptiveMemory) -> Construction:
    """A float64 model of one layer without dot products that computes the task exactly.

    Args:
        task: With values of ±1 and one sequential round.

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


def _evaluation(task: AdaptiveMemory, lag: int) -> Evaluation:
    return Evaluation(_UNIT, keys=task.length, heads=lag + 1)


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
    middle = {f"x[t-{lag}]": "blocks.0.hook_resid_mid" for lag in slots}
    written = {"x[t]": "hook_embed"} | middle | {"f": "blocks.0.hook_resid_post"}
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


def gating_costs(largest: int = 5) -> pd.DataFrame:
    """What y_t = x_{t−t_1} costs with locations 1 … A, A = 2 … ``largest``, either way.

    Columns: ``candidates`` A, ``way`` (``gated`` or ``shifted``), ``layers``, ``heads``,
    ``neurons``, ``weights`` (those that are not 0), ``slot_error`` (the worst slot's certificate).

    Raises:
        ArgumentError: for ``largest`` below 2, or beyond what float64 can select.
    """
    problems = Problems("gating_costs")
    problems.need(largest >= 2, "largest", "must be at least 2", largest, "one is a fixed memory")
    problems.raise_if_any()
    rows = []
    for candidates in range(2, largest + 1):
        locations = tuple(range(1, candidates + 1))
        bits = max((candidates - 1).bit_length(), 2)
        task = AdaptiveMemory(locations, bits=bits)
        ways = {"gated": construct_gated_memory, "shifted": construct_adaptive_memory}
        for way, construct in ways.items():
            made = construct(task)
            spec, certified = made.model.spec, made.certificate.parts
            rows.append(
                {
                    "candidates": candidates,
                    "way": way,
                    "layers": spec.n_layers,
                    "heads": sum(spec.heads),
                    "neurons": sum(map(sum, spec.ffn_widths)),
                    "weights": sum(int(p.count_nonzero()) for p in made.model.parameters()),
                    "slot_error": max(v for k, v in certified.items() if k.startswith("slot")),
                }
            )
    return pd.DataFrame(rows)
