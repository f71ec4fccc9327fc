"""A mean over rows that should be above zero: its 95 % interval and p, as a test of a role."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from interp.stats.bootstrap import row_interval
from interp.stats.nulls import paired_null
from probes.roles.decision import Test

__all__ = ["NONE", "Change", "over_rows"]


@dataclass(frozen=True)
class Change:
    """A mean over rows, its 95 % interval, and p against no change at all."""

    score: float
    low: float
    high: float
    p: float

    def test(self, name: str, floor: float, family: str = "") -> Test:
        """The test that the mean is at least the floor, and significantly above zero."""
        return Test(name, self.score, floor, self.p, self.low, self.high, family)


NONE = Change(0.0, 0.0, 0.0, 1.0)
"""A change of zero, with p = 1."""


def over_rows(rows: Float[np.ndarray, " row"], *, seed: int = 0) -> Change:
    """A mean over rows with its bootstrap interval, and a one-sided t test that it is above 0."""
    mean = float(rows.mean())
    if abs(mean) < 1e-9 or len(rows) < 2:
        return NONE
    return Change(mean, *row_interval(rows, seed=seed), paired_null(rows).p)
