"""Would the same rule say the same on other rows? Resampling of what each row showed.

    stability   the share of 200 resamples of the rows on which every score is at least its floor
    halves      the share of 100 splits of the rows in two on whose halves the scores say the same:
                all at least their floors, or not all

A score is the mean of what its rows showed. That it is significant, and its interval, are asked of
all rows: both speak of resamples already, and that many components were looked at is paid for
once. Tests on as many rows are resampled alike; one whose rows are not kept stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

_RESAMPLES, _SPLITS = 200, 100


@runtime_checkable
class Scored(Protocol):
    """What is asked of a test."""

    @property
    def score(self) -> float:
        """The mean over rows."""

    @property
    def floor(self) -> float:
        """The least mean that passes."""

    @property
    def by_row(self) -> Float[np.ndarray, " row"] | None:
        """What each row showed; None where it is not kept."""


def stability(tests: Sequence[Scored], seed: int = 0) -> float:
    """The share of resamples on which all scores are at least their floors."""
    every = np.full(_RESAMPLES, all(one.score >= one.floor for one in tests if one.by_row is None))
    for test in tests:
        if test.by_row is not None:
            count = len(test.by_row)
            drawn = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
            every &= test.by_row[drawn].mean(1) >= test.floor
    return float(every.mean())


def halves(tests: Sequence[Scored], seed: int = 0) -> float:
    """The share of splits on whose halves the scores say the same; NaN where no test has rows."""
    kept = [(t.by_row, t.floor) for t in tests if t.by_row is not None and len(t.by_row) > 1]
    passed = np.full((2, _SPLITS), True)
    for rows, floor in kept:
        order = np.random.default_rng(seed).random((_SPLITS, len(rows))).argsort(1)
        for side, some in enumerate(np.split(order, [len(rows) // 2], axis=1)):
            passed[side] &= rows[some].mean(1) >= floor
    return float((passed[0] == passed[1]).mean()) if kept else float("nan")
