"""A whole number for each row as a sum of few weighted conditions.

    weight = c_1 [φ_1] + c_2 [φ_2] + …

The conditions of one weight each, [weight = 2], [weight = −1] …, always do, but #φ − #ψ then comes
out as #(φ ∧ ¬ψ) − #(ψ ∧ ¬φ). So conditions on a single variable are taken out first, greedily, as
long as the whole reads shorter. Short, not shortest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from probes.decompile.counting_covers import Cover, cover, support

__all__ = ["weighted_sum"]

_TERM = 2
_MOST_ROWS = 600
_TRIES = 5
Parts = list[tuple[int, Cover]]


def weighted_sum(
    rows: Int[np.ndarray, "row variable"], weights: Int[np.ndarray, " row"], sizes: Sequence[int]
) -> Parts:
    """Weights and conditions, positive weights first.

    Args:
        rows: Values of the variables, from 0.
        weights: The number of each row.
        sizes: How many values each variable has.
    """
    kept = support(rows, weights)
    small, index = np.unique(rows[:, kept], axis=0, return_index=True)
    few, left = [sizes[variable] for variable in kept], weights[index]
    taken: Parts = []
    best = _by_weight(small, left, few)
    near = _neighbours(small)
    while len(small) <= _MOST_ROWS and len(set(left.tolist()) - {0}) > 1:
        tries = [(w, held) for held in _conditions(small, few) for w in _steps(left)]
        tries.sort(key=lambda one: _changes(left - one[0] * one[1], near))
        options = []
        for weight, held in tries[:_TRIES]:
            condition = (weight, cover(small, held, few))
            rest = _by_weight(small, left - weight * held, few)
            options.append((_cost([condition, *rest]), condition, weight * held, rest))
        price, condition, part, rest = min(options, key=lambda option: option[0])
        if price >= _cost(best):
            break
        taken.append(condition)
        left, best = left - part, rest
    parts = [(weight, _wide(found, kept, len(sizes))) for weight, found in [*taken, *best]]
    return sorted(parts, key=lambda part: -part[0])


def _neighbours(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows that differ in one variable, and there by as little as any."""
    nobody = np.zeros(0, dtype=np.int64)
    first, second = [nobody], [nobody]
    for variable in range(rows.shape[1]):
        others = [v for v in range(rows.shape[1]) if v != variable]
        order = np.lexsort([rows[:, variable], *(rows[:, v] for v in others)])
        same = (rows[order][1:, others] == rows[order][:-1, others]).all(axis=1)
        first.append(order[:-1][same])
        second.append(order[1:][same])
    return np.concatenate(first), np.concatenate(second)


def _changes(weights: np.ndarray, near: tuple[np.ndarray, np.ndarray]) -> tuple[int, int]:
    changes = int((weights[near[0]] != weights[near[1]]).sum())
    return changes + 2 * len(set(weights.tolist()) - {0}), int(np.abs(weights).sum())


def _by_weight(rows: np.ndarray, weights: np.ndarray, sizes: Sequence[int]) -> Parts:
    values = sorted(set(weights.tolist()) - {0}, reverse=True)
    return [(value, cover(rows, weights == value, sizes)) for value in values]


def _cost(parts: Parts) -> int:
    return sum(found.cost + _TERM + (abs(weight) != 1) for weight, found in parts)


def _steps(weights: np.ndarray) -> list[int]:
    """Weights that may be taken out: differences of those there are."""
    values = sorted(set(weights.tolist()))
    return sorted({a - b for a in values for b in values} - {0}, key=lambda w: (abs(w), -w))[:8]


def _conditions(rows: np.ndarray, sizes: Sequence[int]) -> Iterator[Bool[np.ndarray, " row"]]:
    """Everything, each value of each variable, and each beginning of its values."""
    yield np.ones(len(rows), dtype=bool)
    for variable, size in enumerate(sizes):
        column = rows[:, variable]
        for value in range(size):
            yield column == value
            if 0 < value < size - 1:
                yield column > value
        for period in range(2, size // 2 + 1):
            if size % period == 0:
                for rest in range(period):
                    yield column % period == rest


def _wide(found: Cover, kept: Sequence[int], variables: int) -> Cover:
    cubes = []
    for cube in found.cubes:
        known = dict(zip(kept, cube, strict=True))
        cubes.append(tuple(known.get(variable) for variable in range(variables)))
    return Cover(tuple(cubes), found.negated)
