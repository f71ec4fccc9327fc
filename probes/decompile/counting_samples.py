"""Numbers of tokens of each class: at random, next to given comparisons, and in given cells.

What a feed-forward network makes of a position depends on how often each class of token came so
far. It can be asked about any such numbers, whether or not a short string has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from scipy.optimize import Bounds, LinearConstraint, milp

__all__ = ["at_thresholds", "drawn", "in_cell"]

Counts = Int[np.ndarray, "row classes"]
_SHORT = 12


def drawn(rows: int, classes: int, longest: int, generator: np.random.Generator) -> Counts:
    """Numbers with sums from 1 to ``longest``, small ones more often, most classes empty."""
    counts = np.zeros((rows, classes), dtype=np.int64)
    for row in counts:
        top = longest if generator.random() < 0.5 else min(_SHORT, longest)
        total = int(np.exp(generator.uniform(0, np.log(top + 1))))
        some = generator.choice(classes, int(generator.integers(1, min(classes, 5) + 1)), False)
        shares = generator.dirichlet(np.full(len(some), 0.8))
        row[some] = generator.multinomial(max(total, 1), shares)
    return counts


def at_thresholds(
    weights: Int[np.ndarray, "forms classes"],
    thresholds: Int[np.ndarray, " forms"],
    starts: Counts,
    longest: int,
    generator: np.random.Generator,
) -> Int[np.ndarray, "moved classes"]:
    """The starting numbers moved to where comparisons just hold or just fail to.

    Each start is moved to the edge of one comparison or of one after another, by changing how many
    tokens there are of a single class each time; moves that leave the numbers allowed stay.
    """
    found = []
    for start in starts:
        here = start
        for form in generator.permutation(len(weights))[: generator.integers(1, 4)]:
            missing = thresholds[form] - generator.integers(0, 2) - weights[form] @ here
            for one in generator.permutation(np.flatnonzero(weights[form])):
                steps, rest = divmod(missing, weights[form, one])
                room = here.sum() + steps <= longest
                if not rest and here[one] + steps >= 0 and room:
                    here = here.copy()
                    here[one] += steps
                    found.append(here)
                    break
    kept = [row for row in found if row.sum() > 0]
    return np.array(kept, dtype=np.int64).reshape(len(kept), starts.shape[1])


def in_cell(
    weights: Int[np.ndarray, "forms classes"],
    low: Sequence[float],
    high: Sequence[float],
    longest: int,
) -> Int[np.ndarray, " classes"] | None:
    """Numbers with low ≤ Σ w n ≤ high for every form; None if no string up to this length has any.

    Args:
        weights: w of each form.
        low: −inf for no bound.
        high: inf for no bound.
        longest: Largest Σ n.
    """
    classes = weights.shape[1]
    rows = np.concatenate([weights, np.ones((1, classes))])
    result = milp(
        np.ones(classes),
        constraints=LinearConstraint(rows, [*low, 1], [*high, longest]),
        integrality=np.ones(classes),
        bounds=Bounds(0, longest),
    )
    return np.rint(result.x).astype(np.int64) if result.success else None
