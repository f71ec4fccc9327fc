"""Which edits cost more than a floor? Rows are run where they decide something.

    exact        e_i  the rise on row i when the edit is made
    slope        g_i  what first order says of it: one backward pass for all edits and all N rows
    estimate     mean of g over all N rows  +  mean of (e − g) over the n rows that were run

The slope is a control variate: where it is good few exact rows tell as much as many, and where it
is bad (it saturates for the parts that are needed most) e − g varies and more rows are run. A slope
alone decides nothing; every edit has its exact rows.

Few edits on few rows (up to 512 together) are all run: there is nothing to save. Else looks are
at 2, 4, 8, 16 … rows, in a random order. At each look the rows give an interval for the mean over
the rows' population (Student's t, n − 1 degrees of freedom), and an edit ends as

    above      the interval lies above the floor
    below      the interval lies below it
    screened   after the first look: the estimate is below a fifth of the floor, and neither row
               moves by as much as the floor. No claim, and no more rows
    undecided  the interval holds the floor, and all rows that may be were run, or all of them could
               hardly put it above. It is not rounded either way

*Hardly*: the estimate may still move by two standard errors of what the other rows add, the rows
may spread as little as two standard errors below what they were seen to (few rows with a rare one
among them spread too much), and it would have to lie above the floor by the interval that all rows
then give. Most edits without effect end here after 8 rows: showing that something small is below a
floor costs more rows than finding what is needed, and nothing rests on it.

*Repeated looks* are paid for: the look at all rows decides at ``alpha``, as the exhaustive run
does, so what that confirms is not lost to having looked before; the earlier looks that may decide
share a tenth of alpha more. So each edit is wrongly placed with a probability of at most 1.1 alpha,
half of it on either side. It is not divided among edits; who asks many and counts those above gives
a smaller one for that side.

*Heavy tails*: single rows of ± 3 nats occur. A t-interval from few rows is too short where the
rare row is not among them. So nothing is decided on fewer than 8 exact rows; e − g is taken to vary
at least a twentieth as much as the slopes do over all N rows, which have seen the rare row; and
what is above must stay so without the row that speaks for it most. What no row shows, no test
finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import chdtri, ndtr, stdtrit
from torch import Tensor

from interp.errors import Problems
from interp.run.edits import Edit, Edits, as_edits, sentence
from interp.run.metrics import Loss, as_metric

LEAST_ROWS = 8
"""The least number of exact rows on which anything is decided, where there are so many."""

CHEAP = 512
"""Edits times rows up to which every edit is run on every row."""

MANY = 4
"""The least number of edits for which slopes, which cost two passes over all rows, are taken."""

_FIRST = 2
_SCREEN = 0.2
"""The share of the floor below which an edit is screened after the first look."""
_EARLY = 0.1
"""What all looks but the last may spend together, as a share of ``alpha``."""
_MOVES = 2.0
"""By how many standard errors an estimate, and its error, may still move."""
_VARIES = 0.05
"""The least variance of e − g, as a share of the slopes' over all rows."""
_LOSS = Loss()

Table = Float[np.ndarray, "edit _"]
Numbers = Float[np.ndarray, " edit"]


@runtime_checkable
class Rises(Protocol):
    """The methods that :func:`gather_evidence` needs of a :class:`~interp.run.run.Run`."""

    def __len__(self) -> int:
        """The number of rows."""

    def slopes(self, many: Sequence[Edit | Edits], metric: Any) -> Tensor:
        """First-order estimates of the rises on all rows, ``[edit, row]``."""

    def rises(
        self, many: Sequence[Edit | Edits], metric: Any, rows: Sequence[int]
    ) -> Iterator[Tensor]:
        """Each edit's rise at each position of some rows."""

    def by_row(self, values: Tensor, rows: Sequence[int]) -> Tensor:
        """The mean over scored positions of each row."""


@dataclass(frozen=True)
class Finding:
    """What is known of one edit.

    Attributes:
        edits: The edit, or edits made together.
        rise: The estimate of the mean rise over rows, in the metric's unit; more is worse.
        error: The estimate's standard error at the last look, of ``rows`` − 1 degrees of freedom.
        low, high: The estimate's interval at the last look.
        status: ``above``, ``below``, ``screened`` or ``undecided``.
        rows: The number of rows that were run with the edit.
        slope: The mean slope over all rows; NaN where there is none.
        by_row: What each row that was run adds to the estimate: numbers whose mean is ``rise`` and
            whose standard error is ``error``.
    """

    edits: Edits
    rise: float
    error: float
    low: float
    high: float
    status: str
    rows: int
    slope: float
    by_row: Numbers = field(compare=False, repr=False)

    def __str__(self) -> str:
        return (
            f"{sentence(self.edits)}: {self.rise:.3g} [{self.low:.3g}, {self.high:.3g}], "
            f"{self.status} after {self.rows} rows"
        )


def gather_evidence(
    run: Rises,
    many: Sequence[Edit | Edits],
    metric: Any = _LOSS,
    *,
    floor: float | Sequence[float],
    alpha: float | tuple[float, float] = 0.05,
    exhaustive: bool = False,
    cheap: int = CHEAP,
    most: int | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Find which edits make the metric worse by more than a floor, on average over rows.

    Args:
        run: The model on its rows; what is changed in it already stays changed.
        many: The edits; tuples are made together.
        metric: A :class:`~interp.run.metrics.Metric`, or a function (more is worse).
        floor: The least mean rise that counts, in the metric's unit; one for all, or one an edit.
        alpha: The probability of a wrong decision for each edit on all rows (at most a tenth more
            over all looks); or twice that of a wrong ``below``, and of a wrong ``above``.
        exhaustive: Run every edit on every row, and look once.
        cheap: The same is done where edits times rows are at most so many and ``most`` is not
            given.
        most: The most rows that an edit is run on; all by default.
        seed: Seed of the order in which rows are run.

    Raises:
        ArgumentError: for a floor that is not above 0, or an alpha that is none.
    """
    problems, measured, count = Problems("gather_evidence"), as_metric(metric), len(run)
    floors, sides = np.broadcast_to(floor, len(many)), np.broadcast_to(alpha, 2)
    problems.need(bool((floors > 0).all()), "floor", "must be above 0", floor, "such as 0.1 nats")
    good = bool(((sides > 0) & (sides < 1)).all())
    problems.need(good, "alpha", "must be between 0 and 1", alpha, "such as 0.05")
    problems.raise_if_any()
    order = row_order(count, seed)
    exhaustive = exhaustive or (most is None and len(many) * count <= cheap)
    slopes = None
    if len(many) >= MANY and not (exhaustive or measured.compares or count <= _FIRST):
        slopes = (measured.worse * run.slopes(many, measured))[:, order].numpy()
    found: dict[int, Finding] = {}
    left = list(range(len(many)))
    for look in _looks(count, sides / 2, exhaustive=exhaustive, most=most):
        if not left:
            break
        rows = order[: look.rows].tolist()
        rises = run.rises([many[i] for i in left], measured, rows)
        exact = np.stack([(measured.worse * run.by_row(rise, rows)).numpy() for rise in rises])
        here = None if slopes is None else slopes[left]
        numbers = look.numbers(exact, here)
        status, more = look.decide(exact, here, numbers, floors[left])
        for at, i in enumerate(left):
            slope = float("nan") if here is None else float(here[at].mean())
            rest = exact[at] if here is None else exact[at] - here[at, : look.rows]
            rise, error, low, high = map(float, numbers[:, at])
            one = rise, error, low, high, str(status[at]), look.rows, slope
            found[i] = Finding(as_edits(many[i]), *one, _spread(rest, rise, error))
        left = [i for i, wanted in zip(left, more, strict=True) if wanted]
    return [found[i] for i in range(len(many))]


@dataclass(frozen=True)
class _Look:
    """What is known and decided after some rows.

    Attributes:
        rows: The number of rows that were run.
        most: The number at the last look.
        least: The number from which on anything is decided.
        odds: The probability of a wrong ``below``, and of a wrong ``above``, that this look may
            spend.
        widest: Student's quantile of the last look, for the side of ``above``.
    """

    rows: int
    most: int
    least: int
    odds: Float[np.ndarray, " 2"]
    widest: float

    def numbers(self, exact: Table, slopes: Table | None) -> Float[np.ndarray, "4 edit"]:
        """Each edit's estimate, its standard error, and where its interval begins and ends."""
        rise, error = _estimates(exact, slopes)
        below, above = -stdtrit(max(self.rows - 1, 1), self.odds)
        return np.stack([rise, error, rise - above * error, rise + below * error])

    def decide(
        self,
        exact: Table,
        slopes: Table | None,
        numbers: Float[np.ndarray, "4 edit"],
        floors: Numbers,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decide on each edit after this look.

        Args:
            exact: Measured rises on the rows that were run, ``[edit, row]``.
            slopes: First-order estimates on all rows, ``[edit, row]``; None if not taken.
            numbers: What :meth:`numbers` gave for these.
            floors: The floor of each edit.

        Returns:
            Each edit's status (``above``, ``below``, ``screened`` or ``undecided``), and whether it
            is undecided while more rows could still put it above its floor.
        """
        rise, error, low, high = numbers
        status, within_reach = np.full(len(rise), "undecided", dtype=object), True
        if self.rows >= max(self.least, _FIRST):
            status[(low > floors) & (_without_best(exact, slopes) > floors)] = "above"
            status[high < floors] = "below"
            within_reach = rise + _reach(exact, error, self.most, self.widest) > floors
        elif self.rows == _FIRST:
            small = (np.abs(exact).max(1) < floors) & (rise < _SCREEN * floors)
            status[small] = "screened"
        return status, (status == "undecided") & within_reach


def _looks(
    count: int, odds: Float[np.ndarray, " 2"], *, exhaustive: bool, most: int | None
) -> Iterator[_Look]:
    """The looks at rows: one at all of them, or those of :func:`looks_of`."""
    looks = (count,) if exhaustive else looks_of(count)
    looks = looks if most is None else tuple(look for look in looks if look <= max(most, _FIRST))
    widest = float(-stdtrit(max(looks[-1] - 1, 1), odds[1]))
    for rows in looks:
        its = odds if rows == looks[-1] else odds / early_price(count)
        yield _Look(rows, looks[-1], min(LEAST_ROWS, count), its, widest)


def row_order(count: int, seed: int) -> Tensor:
    """The order in which rows are run."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def looks_of(rows: int) -> tuple[int, ...]:
    """After how many rows is looked: 2, 4, 8 … and all."""
    looks = [min(_FIRST, rows)]
    while looks[-1] < rows:
        looks.append(min(2 * looks[-1], rows))
    return tuple(looks)


def early_price(rows: int) -> float:
    """The factor by which a p-value of an earlier look is multiplied.

    The looks before the last together may spend a tenth of a level, in equal parts: with this
    factor, which is ten times their number, their p-values can be held against the level itself.
    """
    least = min(LEAST_ROWS, rows)
    return max(sum(look >= least for look in looks_of(rows)[:-1]), 1) / _EARLY


def _estimates(exact: Table, slopes: Table | None) -> tuple[Numbers, Numbers]:
    """The estimates of mean rises over the population of rows, and their standard errors.

    With n of N rows run, Var = Var(e − g) / n + (Var(g) + 2 Cov(g, e − g)) / N.
    """
    n = exact.shape[1]
    if slopes is None or n == slopes.shape[1]:
        mean = exact.mean(1)
        return mean, exact.std(1, ddof=1) / n**0.5 if n > 1 else np.full_like(mean, np.inf)
    total, rest = slopes.shape[1], exact - slopes[:, :n]
    spread = slopes.var(1, ddof=1)
    apart = np.maximum(rest.var(1, ddof=1), _VARIES * spread)
    among = spread
    if n >= LEAST_ROWS:  # too few rows say nothing of the covariance
        centred = slopes[:, :n] - slopes[:, :n].mean(1, keepdims=True)
        shared = (centred * rest).sum(1) / (n - 1)
        among = np.maximum(spread + 2 * shared, 0.0)
    return slopes.mean(1) + rest.mean(1), np.sqrt(apart / n + among / total)


def _spread(values: Numbers, mean: float, error: float) -> Numbers:
    """Numbers moved and stretched to have a mean and a standard error of the mean."""
    off = values - values.mean()
    own = float(np.sqrt((off**2).sum() / max(len(off) - 1, 1) / len(off)))
    stretched: Numbers = mean + off * (error / own if own > 0 else 0.0)
    return stretched


def _reach(exact: Table, error: Numbers, rows: int, quantile: float) -> Numbers:
    """How far above its estimate an edit's interval could begin once all ``rows`` were run."""
    freedom = exact.shape[1] - 1
    last = exact.std(1, ddof=1) / rows**0.5
    least = last * np.sqrt(freedom / chdtri(freedom, ndtr(-_MOVES)))
    moves = np.sqrt(np.maximum(error**2 - least**2, 0.0))
    reach: Numbers = _MOVES * moves - quantile * least
    return reach


def _without_best(exact: Table, slopes: Table | None) -> Numbers:
    """The estimates without the row that speaks for each edit most."""
    best = exact.argmax(1)[:, None]
    n, most = exact.shape[1], np.take_along_axis(exact, best, 1)[:, 0]
    if slopes is None or n == slopes.shape[1]:
        return (exact.sum(1) - most) / (n - 1)
    total, its = slopes.shape[1], np.take_along_axis(slopes, best, 1)[:, 0]
    rest = exact.sum(1) - slopes[:, :n].sum(1) - (most - its)
    return (slopes.sum(1) - its) / (total - 1) + rest / (n - 1)
