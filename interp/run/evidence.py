"""Find which edits raise a metric by more than a floor, and run only the rows that this needs.

    exact        e_i  the rise on row i when the edit is made
    slope        g_i  its first-order estimate: one backward pass for all edits and all N rows
    estimate     mean of g over all N rows  +  mean of (e − g) over the n rows that were run

The slope is a control variate. Where it is good, a few exact rows tell as much as many. Where it is
bad (it saturates for the parts that are needed most), e − g varies and more rows are run. No edit
is decided from its slope alone; every edit has exact rows.

If edits times rows is at most 512, every edit is run on every row: there is nothing to save.
Otherwise interim analyses (*looks*) are made after 2, 4, 8, 16 … rows, in a random order. Each look
computes a confidence interval for the mean over the population of rows (Student's t, n − 1 degrees
of freedom) and gives each edit a status:

    above      the interval lies above the floor
    below      the interval lies below the floor
    screened   after the first look: the estimate is below a fifth of the floor, and on neither row
               does the metric change by the floor. Nothing is claimed, and no more rows are run
    undecided  the interval contains the floor, and either all allowed rows were run, or running the
               rest could hardly put it above. It is not rounded to above or below

*Could hardly*: the check is generous to the edit. The estimate may still move by two standard
errors of what the other rows add; the standard deviation over rows may be as much as two standard
errors smaller than observed (few rows with a rare one among them overstate it); and with these the
interval of all rows would have to lie above the floor. Most edits without effect end here after 8
rows: showing that a small effect is below a floor takes more rows than finding the parts that are
needed, and no claim rests on it.

*Repeated looks* are corrected for. The look at all rows decides at level ``alpha``, as a run on all
rows does, so that having looked earlier costs no power there. The earlier looks that may decide
share a tenth of alpha more. So each edit is wrongly placed with a probability of at most 1.1 alpha,
half of it on either side. There is no correction for the number of edits; if you count the edits
above the floor among many, pass a smaller alpha for that side.

*Heavy tails*: single rows of ± 3 nats occur. A t-interval from few rows is too short if the rare
row is not among them. So nothing is decided on fewer than 8 exact rows; the variance of e − g is
taken to be at least a twentieth of that of the slopes over all N rows, which include the rare row;
and an edit that is above the floor must stay so without the row with its largest rise. An effect
that none of the rows shows is not found.
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
"""Least number of measured rows on which an edit is decided (all rows, if there are fewer). A rare
row with a large rise may be missing among fewer (see above: heavy tails)."""

CHEAP = 512
"""Number of edits times number of rows up to which every edit is run on every row. So small a table
leaves nothing to save."""

MANY = 4
"""Least number of edits for which slopes (first-order estimates) are computed. They cost two passes
over all rows, which fewer edits would not repay."""

_FIRST = 2
_SCREEN = 0.2
"""After the first look an edit whose estimated rise is below this share of its floor, and that is
below the floor on every row so far, is set aside."""
_EARLY = 0.1
"""Error probability that all looks before the last may spend together, as a share of ``alpha``.
With it the whole error is at most 1.1 times ``alpha``."""
_MOVES = 2.0
"""How many standard errors an estimate, and its standard error, are assumed to still move at most.
It decides whether all rows could bring an edit above its floor."""
_VARIES = 0.05
"""Least variance that is assumed for e − g, as a share of the variance of the slopes over all rows.
Slopes have seen the rare rows that a few measured rows may lack."""
_LOSS = Loss()

Table = Float[np.ndarray, "edit _"]
Numbers = Float[np.ndarray, " edit"]


@runtime_checkable
class Rises(Protocol):
    """The methods that :func:`gather_evidence` needs of a :class:`~interp.run.run.Run`."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def slopes(self, many: Sequence[Edit | Edits], metric: Any) -> Tensor:
        """Return first-order estimates of the rises on all rows, ``[edit, row]``."""

    def rises(
        self, many: Sequence[Edit | Edits], metric: Any, rows: Sequence[int]
    ) -> Iterator[Tensor]:
        """Yield for each edit the rise at each position of some rows, ``[row, pos]``."""

    def by_row(self, values: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the mean over scored positions of each row, ``[row]``."""


@dataclass(frozen=True)
class Finding:
    """The measured effect of one edit.

    Attributes:
        edits: The edit, or the edits that were made together.
        rise: The estimated mean rise over rows, in the metric's unit; more is worse.
        error: The standard error of ``rise`` at the last look, with ``rows`` − 1 degrees of
            freedom.
        low, high: The ends of the confidence interval at the last look.
        status: ``above``, ``below``, ``screened`` or ``undecided``.
        rows: The number of rows that were run with the edit.
        slope: The mean slope over all rows; NaN if no slopes were computed.
        by_row: One number for each row that was run, scaled such that their mean is ``rise`` and
            their standard error is ``error``.
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
        run: The model on its rows; edits that the run already makes stay in place.
        many: The edits to test; a tuple of edits is made together.
        metric: A :class:`~interp.run.metrics.Metric`, or a function (more is worse).
        floor: The least mean rise that counts, in the metric's unit: one for all edits, or one per
            edit.
        alpha: The probability of a wrong decision for each edit, half of it on each side (all looks
            together add at most a tenth); or a pair with twice the probability of a wrong ``below``
            and twice that of a wrong ``above``.
        exhaustive: Whether to run every edit on every row, with one look.
        cheap: Every edit is also run on every row if edits times rows is at most this number and
            ``most`` is not given.
        most: The largest number of rows that an edit is run on, at least 2; all by default. It does
            not go with ``exhaustive`` unless it is all rows.
        seed: Seed for the random order in which rows are run.

    Returns:
        One finding per edit, in the order of ``many``.

    Raises:
        ArgumentError: if a floor is not above 0, alpha is not between 0 and 1, or ``most`` is below
            the number of rows of an exhaustive run.
    """
    problems, measured, count = Problems("gather_evidence"), as_metric(metric), len(run)
    floors, sides = np.broadcast_to(floor, len(many)), np.broadcast_to(alpha, 2)
    problems.need(bool((floors > 0).all()), "floor", "must be above 0", floor, "such as 0.1 nats")
    good = bool(((sides > 0) & (sides < 1)).all())
    problems.need(good, "alpha", "must be between 0 and 1", alpha, "such as 0.05")
    enough = not exhaustive or most is None or most >= count
    rule = f"must be all {count} rows where exhaustive=True"
    problems.need(enough, "most", rule, most, "leave one of the two out")
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
    """One interim analysis: how many rows it uses and with what error probability it may decide.

    Attributes:
        rows: The number of rows that were run before it.
        most: The number of rows at the last look.
        least: The number of rows below which nothing is decided.
        odds: The error probabilities of this look: of a wrong ``below``, and of a wrong ``above``.
        widest: The Student's t quantile of the last look on the side of ``above``.
    """

    rows: int
    most: int
    least: int
    odds: Float[np.ndarray, " 2"]
    widest: float

    def numbers(self, exact: Table, slopes: Table | None) -> Float[np.ndarray, "4 edit"]:
        """Return each edit's estimate, standard error, and ends of the interval, ``[4, edit]``."""
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
    """Yield the looks up to ``most`` rows: of :func:`looks_of`, or one if ``exhaustive``."""
    looks = (count,) if exhaustive else looks_of(count)
    looks = looks if most is None else tuple(look for look in looks if look <= max(most, _FIRST))
    widest = float(-stdtrit(max(looks[-1] - 1, 1), odds[1]))
    for rows in looks:
        its = odds if rows == looks[-1] else odds / early_price(count)
        yield _Look(rows, looks[-1], min(LEAST_ROWS, count), its, widest)


def row_order(count: int, seed: int) -> Tensor:
    """Return the random order in which rows are run: a permutation of ``range(count)``."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def looks_of(rows: int) -> tuple[int, ...]:
    """Return the numbers of rows after which a look is made: 2, 4, 8 … and ``rows`` itself."""
    looks = [min(_FIRST, rows)]
    while looks[-1] < rows:
        looks.append(min(2 * looks[-1], rows))
    return tuple(looks)


def early_price(rows: int) -> float:
    """Return the factor by which a p-value of an earlier look is multiplied.

    The looks before the last together may spend a tenth of a level, in equal parts. The factor is
    ten times their number; p-values that are multiplied by it can be compared with the level
    itself.
    """
    least = min(LEAST_ROWS, rows)
    return max(sum(look >= least for look in looks_of(rows)[:-1]), 1) / _EARLY


def _estimates(exact: Table, slopes: Table | None) -> tuple[Numbers, Numbers]:
    """Estimate each edit's mean rise over the population of rows; return the estimates and standard
    errors.

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
    """Shift and scale numbers to have the given mean and the given standard error of the mean."""
    off = values - values.mean()
    own = float(np.sqrt((off**2).sum() / max(len(off) - 1, 1) / len(off)))
    stretched: Numbers = mean + off * (error / own if own > 0 else 0.0)
    return stretched


def _reach(exact: Table, error: Numbers, rows: int, quantile: float) -> Numbers:
    """Return how far above its estimate an edit's interval could begin after all ``rows`` rows."""
    freedom = exact.shape[1] - 1
    last = exact.std(1, ddof=1) / rows**0.5
    least = last * np.sqrt(freedom / chdtri(freedom, ndtr(-_MOVES)))
    moves = np.sqrt(np.maximum(error**2 - least**2, 0.0))
    reach: Numbers = _MOVES * moves - quantile * least
    return reach


def _without_best(exact: Table, slopes: Table | None) -> Numbers:
    """Return each edit's estimate without the row on which its measured rise is largest."""
    best = exact.argmax(1)[:, None]
    n, most = exact.shape[1], np.take_along_axis(exact, best, 1)[:, 0]
    if slopes is None or n == slopes.shape[1]:
        return (exact.sum(1) - most) / (n - 1)
    total, its = slopes.shape[1], np.take_along_axis(slopes, best, 1)[:, 0]
    rest = exact.sum(1) - slopes[:, :n].sum(1) - (most - its)
    return (slopes.sum(1) - its) / (total - 1) + rest / (n - 1)
