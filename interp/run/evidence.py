"""Which edits cost more than a floor? Rows are run where they decide something.

    exact        e_i  the rise on row i when the edit is made
    slope        g_i  what first order says of it: one backward pass for all edits and all N rows
    estimate     mean of g over all N rows  +  mean of (e − g) over the n rows that were run

The slope is a control variate: where it is good few exact rows tell as much as many, and where it
is bad (it saturates for the parts that are needed most) e − g varies and more rows are run. A slope
alone decides nothing; every edit has its exact rows.

Looks are at 2, 4, 8, 16 … rows, in a random order. At each look the rows give an interval for the
mean over the rows' population (Student's t, n − 1 degrees of freedom), and an edit ends as

    above      the interval lies above the floor
    below      the interval lies below it
    screened   after the first look, an estimate below a fifth of the floor: no claim, and no more rows
    undecided  all rows were run and the interval holds the floor; it is not rounded either way

*Repeated looks* are paid for: ``alpha`` is divided evenly among the looks that may decide, so that
each edit is wrongly placed with probability alpha at most, half of it on either side. It is not
divided among edits.

*Heavy tails*: single rows of ± 3 nats occur. A t-interval from few rows is too short where the rare
row is not among them. So nothing is decided on fewer than 8 exact rows; e − g is taken to vary at
least a twentieth as much as the slopes do over all N rows, which have seen the rare row; and what is
above must stay so without the row that speaks for it most. What no row shows, no test finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor

from interp.errors import Problems
from interp.run.edits import Edit, Edits, as_edits, sentence
from interp.run.metrics import Loss, as_metric
from interp.run.run import Run

__all__ = ["LEAST_ROWS", "Finding", "evidence", "looks_of"]

LEAST_ROWS = 8
"""The least number of exact rows on which anything is decided, where there are so many."""

_FIRST = 2
_SCREEN = 0.2
"""The share of the floor below which an edit is screened after the first look."""
_VARIES = 0.05
"""The least variance of e − g, as a share of the slopes' over all rows."""
_LOSS = Loss()


@dataclass(frozen=True)
class Finding:
    """What is known of one edit.

    Attributes:
        edits: The edit, or edits made together.
        rise: The estimate of the mean rise over rows, in the metric's unit; more is worse.
        low, high: Its interval at the last look.
        status: ``above``, ``below``, ``screened`` or ``undecided``.
        rows: The number of rows that were run with the edit.
        slope: The mean slope over all rows; NaN where there is none.
    """

    edits: Edits
    rise: float
    low: float
    high: float
    status: str
    rows: int
    slope: float

    def __str__(self) -> str:
        return (
            f"{sentence(self.edits)}: {self.rise:.3g} [{self.low:.3g}, {self.high:.3g}], "
            f"{self.status} after {self.rows} rows"
        )


def evidence(
    run: Run,
    many: Sequence[Edit | Edits],
    metric: Any = _LOSS,
    *,
    floor: float,
    alpha: float = 0.05,
    exhaustive: bool = False,
    seed: int = 0,
) -> list[Finding]:
    """Find which edits make the metric worse by more than a floor, on average over rows.

    Args:
        run: The model on its rows; what is changed in it already stays changed.
        many: The edits; tuples are made together.
        metric: A :class:`~interp.run.metrics.Metric`, or a function (more is worse).
        floor: The least mean rise that counts, in the metric's unit.
        alpha: The probability of a wrong decision for each edit, over all looks.
        exhaustive: Run every edit on every row, and look once.
        seed: Seed of the order in which rows are run.

    Raises:
        ArgumentError: for a floor that is not above 0, or an alpha that is none.
    """
    problems, measured, count = Problems("evidence"), as_metric(metric), len(run)
    problems.need(floor > 0, "floor", "must be above 0", floor, "such as 0.1 nats")
    problems.need(0 < alpha < 1, "alpha", "must be between 0 and 1", alpha, "such as 0.05")
    problems.raise_if_any()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    looks = (count,) if exhaustive else looks_of(count)
    sided = alpha / 2 / sum(look >= min(LEAST_ROWS, count) for look in looks)
    slopes = None
    if not (exhaustive or measured.compares or count <= _FIRST):
        slopes = measured.worse * run.slopes(many, measured)[:, order]
    found: dict[int, Finding] = {}
    left = list(range(len(many)))
    for look in looks:
        rows = order[:look].tolist()
        rises = run.rises([many[i] for i in left], measured, rows)
        for i, rise in zip([*left], rises, strict=True):
            exact = measured.worse * run.by_row(rise, rows)
            slope = None if slopes is None else slopes[i]
            status, numbers = _judged(exact, slope, count, look, floor, sided)
            mean = float("nan") if slope is None else float(slope.mean())
            found[i] = Finding(as_edits(many[i]), *numbers, status, look, mean)
        left = [i for i in left if found[i].status == "undecided"]
    return [found[i] for i in range(len(many))]


def looks_of(rows: int) -> tuple[int, ...]:
    """After how many rows is looked: 2, 4, 8 … and all."""
    looks = [min(_FIRST, rows)]
    while looks[-1] < rows:
        looks.append(min(2 * looks[-1], rows))
    return tuple(looks)


def _judged(
    exact: Tensor, slope: Tensor | None, count: int, look: int, floor: float, sided: float
) -> tuple[str, tuple[float, float, float]]:
    """The status at a look; the estimate, and the ends of its interval."""
    rise, error = _estimate(exact, slope)
    wide = float(student.isf(sided, max(look - 1, 1))) * error if look > 1 else float("inf")
    numbers = rise, rise - wide, rise + wide
    if look == _FIRST < count and rise < _SCREEN * floor:
        return "screened", numbers
    if look >= min(LEAST_ROWS, count) and look > 1:
        if numbers[1] > floor and _without_best(exact, slope) > floor:
            return "above", numbers
        if numbers[2] < floor:
            return "below", numbers
    return "undecided", numbers


def _estimate(exact: Tensor, slope: Tensor | None) -> tuple[float, float]:
    """The estimate of the mean rise over the population of rows, and its standard error.

    With n of N rows run, Var = Var(e − g) / n + (Var(g) + 2 Cov(g, e − g)) / N.
    """
    n = len(exact)
    if slope is None or n == len(slope):
        return float(exact.mean()), float(exact.std() / n**0.5) if n > 1 else float("inf")
    rest, total = exact - slope[:n], len(slope)
    spread = slope.var()
    least = max(float(rest.var()), _VARIES * float(spread))
    shared = float(((slope[:n] - slope[:n].mean()) * (rest - rest.mean())).sum() / (n - 1))
    among = max(float(spread) + 2 * shared, 0.0) if n >= LEAST_ROWS else float(spread)
    return float(slope.mean() + rest.mean()), float((least / n + among / total) ** 0.5)


def _without_best(exact: Tensor, slope: Tensor | None) -> float:
    """The estimate without the row that speaks for the edit most."""
    best = int(exact.argmax())
    kept = torch.arange(len(exact)) != best
    if slope is None or len(slope) == len(exact):
        return float(exact[kept].mean())
    others = torch.arange(len(slope)) != best
    return float(slope[others].mean() + (exact - slope[: len(exact)])[kept].mean())
