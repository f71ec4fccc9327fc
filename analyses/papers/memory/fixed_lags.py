"""What fixed lags cannot do, and what an FFN that gates costs (`memory` §1.3).

Without content in the scores a layer's heads give Σ_s k(s) x_{t−s} with one kernel for all tokens.
The best such prediction, linear in every channel of every earlier token, has the error

    E y² − (E y)² − Σ_{s, channel} (E[y · x_{t−s, channel}])²

because inputs are independent with mean 0 and variance 1. All expectations are sums over the
addresses that the locations are read from, and over the signs of the values: exact, no sampling.
For y_t = x_{t−t_1} and A locations named equally often this is 1 − 1/A.

The floor concerns attention whose readout is linear. An FFN that gates one group of heads for each
candidate lag gets below it, at the price that :func:`gating_costs` counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch

from prooflens.errors import Problems
from prooflens.proofs import construct_adaptive_memory, construct_gated_memory
from prooflens.tasks import AdaptiveMemory

__all__ = ["FixedLagFloor", "fixed_lag_floor", "gating_costs"]

_MOST_PATHS = 2**16
_LINEAR = ("single", "mean")


@dataclass(frozen=True)
class FixedLagFloor:
    """The smallest error that a prediction with fixed lags can have.

    Attributes:
        variance: The variance of y, which is the error of the best constant.
        floor: Mean squared error of the best prediction that is linear in all channels at all lags.
        weights: (lag, channel) → its coefficient, for those that are not 0; channel 0 is the value.
    """

    variance: float
    floor: float
    weights: dict[tuple[int, int], float]

    @property
    def share(self) -> float:
        """The smallest error that fixed lags can reach, as a share of the target's variance."""
        return self.floor / self.variance


def fixed_lag_floor(task: AdaptiveMemory) -> FixedLagFloor:
    """Compute the smallest error of a prediction with fixed lags on a task, in closed form.

    Raises:
        ArgumentError: for a nonlinear readout of Gaussian values, whose moments are no finite sum,
            or for more than 2¹⁶ possible combinations of locations.
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
    """Yield (probability, t_1 … t_M, lag → address read there) for every possible combination of
    locations."""
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
    """Return E y, E y² and E[y · x_{t−s}] at each lag, given where the memories lie.

    For linear readouts standard normal values have the same moments as signs.
    """
    places = sorted({0, *lags})
    corners = torch.tensor(list(product((-1.0, 1.0), repeat=len(places))), dtype=torch.float32)
    at = {lag: corners[:, i][None] for i, lag in enumerate(places)}
    y = task.f([at[lag] for lag in (0, *lags)])[0].double()
    by_lag = {lag: float((y * column[0]).mean()) for lag, column in at.items()}
    return float(y.mean()), float((y**2).mean()), by_lag


def _signs(code: int, bits: int) -> tuple[int, ...]:
    return tuple(2 * (code >> (bits - 1 - b) & 1) - 1 for b in range(bits))


def gating_costs(largest: int = 5) -> pd.DataFrame:
    """Return what it takes to compute y_t = x_{t−t_1} with locations 1 … A, for A = 2 …
    ``largest``, by gating and by shifting.

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
