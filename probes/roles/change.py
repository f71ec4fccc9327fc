"""A mean over rows that should be above zero: its 95 % interval and p, as a test of a role.

What can be of either sign (a rise of the loss, a difference of two shares) is tested against zero.
A squared change of the output is never negative, and above zero whatever is changed: against zero
every component of an untrained model would be significant. It is tested against half of the floor
that it must reach (:func:`beyond`), as far down as its interval may reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from interp.stats.bootstrap import row_interval
from interp.stats.nulls import paired_null
from probes.roles.decision import Test

__all__ = ["NONE", "Change", "beyond", "over_rows"]


@dataclass(frozen=True)
class Change:
    """A mean over rows, its 95 % interval, and its p."""

    score: float
    low: float
    high: float
    p: float

    def test(self, name: str, floor: float, family: str = "") -> Test:
        """The test that the mean is at least the floor, and significantly above what p is
        against."""
        return Test(name, self.score, floor, self.p, self.low, self.high, family)


NONE = Change(0.0, 0.0, 0.0, 1.0)
"""A change of zero, with p = 1."""


def over_rows(rows: Float[np.ndarray, " row"], *, than: float = 0.0, seed: int = 0) -> Change:
    """A mean over rows with its bootstrap interval, and a one-sided t test that it is above
    ``than``."""
    mean = float(rows.mean())
    if abs(mean) < 1e-9 or len(rows) < 2:
        return NONE
    return Change(mean, *row_interval(rows, seed=seed), paired_null(rows - than).p)


def beyond(floor: float, *, squared: bool) -> float:
    """What a mean is tested against that must be at least the floor: zero, or of squares half of
    it."""
    return floor / 2 if squared else 0.0
