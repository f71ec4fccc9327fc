"""A mean over rows with its 95 % interval and p-value, used as a test of a role.

A quantity that can have either sign (a rise of the loss, a difference of two shares) is tested
against zero. A squared change of the output is never negative, and it is above zero whatever is
changed: tested against zero, every component of an untrained model would be significant. It is
therefore tested against half of the floor that it must reach (:func:`beyond`), which is also as far
down as its interval may reach.

Where only some of the rows were run, p pays for having looked early, by the rule that stopped:

    rises of the loss     :func:`~interp.run.evidence.gather_evidence`: the looks before the last
                          share a tenth of the level, so p is multiplied by ten times their number
                          (:func:`from_finding`)
    changes, controls     :meth:`~probes.roles.evidence.Evidence.odds`: p must be at most the level
                          (for the share of heads that pass) divided by the number of looks; p is
                          multiplied by that number before (:func:`over_rows`). So k looks spend at
                          most (k − 1)/k² of that level, a quarter, beyond what all rows spend

Neither rule changes the p of what all rows decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from interp.run import Finding
from interp.run.evidence import LEAST_ROWS, early_price, looks_of
from interp.stats.bootstrap import row_interval
from interp.stats.nulls import paired_null
from interp.stats.p_values import LEAST_P
from probes.roles.decision import Test


@dataclass(frozen=True)
class RowMean:
    """A mean over rows with its 95 % interval and its p-value.

    Attributes:
        score: The mean.
        low, high: The 95 % interval of the mean.
        p: The one-sided p-value for the mean being above the null, which is zero, or the ``than``
            of :func:`over_rows`.
        by_row: The value of each row, whose mean is the score; None where the values are not kept.
    """

    score: float
    low: float
    high: float
    p: float
    by_row: Float[np.ndarray, " row"] | None = field(default=None, compare=False, repr=False)

    def test(self, name: str, floor: float, family: str = "") -> Test:
        """Make the test that the mean reaches a floor.

        Its p-value is that of the mean, computed against the null with which the mean was made:
        zero, or half of a floor for squared changes (see :func:`over_rows`).

        Args:
            name: What is measured, in words and with its unit.
            floor: The least mean that passes.
            family: The family of tests in which p is adjusted for false discovery.
        """
        numbers = self.score, floor, self.p, self.low, self.high
        return Test(name, *numbers, family, by_row=self.by_row)


NONE = RowMean(0.0, 0.0, 0.0, 1.0)
"""A change of exactly zero: interval from 0 to 0, p = 1."""


def over_rows(
    rows: Float[np.ndarray, " row"], *, than: float = 0.0, of: int | None = None
) -> RowMean:
    """Compute a mean over rows with its 95 % interval, and a one-sided t test that it is above
    ``than``.

    Args:
        rows: One value per row.
        than: The value that the mean is tested against.
        of: The number of rows in all, if ``rows`` holds only the first of them. The interval is
            then Student's instead of a bootstrap's, and p is multiplied by the number of times at
            which a decision may be made (:func:`looks_at`): these tests stop at an even share of
            the level, not by the rule that :func:`from_finding` pays for.

    Returns:
        The mean; :data:`NONE` if it is below 1e-9 in size or there are fewer than two rows.
    """
    mean = float(rows.mean())
    if abs(mean) < 1e-9 or len(rows) < 2:
        return NONE
    null = paired_null(rows - than)
    if of is None:
        return RowMean(mean, *row_interval(rows, seed=0), null.p, rows)
    wide = float(stdtrit(len(rows) - 1, 0.975)) * null.std
    return RowMean(mean, mean - wide, mean + wide, min(1.0, null.p * len(looks_at(of))), rows)


def from_finding(one: Finding, of: int) -> RowMean:
    """Convert a finding, made after some of the rows, to a mean with interval and p-value.

    Args:
        one: The mean rise of the loss under an edit, with its standard error.
        of: The number of rows in all.

    Returns:
        The mean with Student's 95 % interval. Its p-value is that of a one-sided t test against
        zero, multiplied by :func:`~interp.run.evidence.early_price` to correct for deciding before
        all rows were seen, as the looks that made the finding share a tenth of the level.
    """
    if abs(one.rise) < 1e-9:
        return NONE
    error = max(one.error, 1e-12)  # 0 where every row loses the same
    wide = float(stdtrit(one.rows - 1, 0.975)) * error
    p = max(float(stdtr(one.rows - 1, -one.rise / error)), LEAST_P)
    price = early_price(of)
    return RowMean(one.rise, one.rise - wide, one.rise + wide, min(1.0, p * price), one.by_row)


def looks_at(rows: int) -> list[int]:
    """Return the numbers of rows after which a test may be decided: 8, 16 and so on, and at last
    all."""
    return [look for look in looks_of(rows) if look >= min(LEAST_ROWS, rows)]


def beyond(floor: float, *, squared: bool) -> float:
    """Return the value that a mean is tested against: 0, or half of the floor for a mean of
    squares.

    Args:
        floor: The least mean that passes the test.
        squared: Whether the rows' values are squares, which are never negative.
    """
    return floor / 2 if squared else 0.0
