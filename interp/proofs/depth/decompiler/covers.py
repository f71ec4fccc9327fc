"""Write a Boolean function, given by its rows, as a short disjunction of conjunctions.

A *variable* takes one of a few values (which token, in which interval a number is); a *cube* allows
some values of each variable and holds where all variables have allowed values:

    f = cube ∨ cube ∨ …,      cube = (x_1 ∈ A_1) ∧ (x_2 ∈ A_2) ∧ …

Variables that do not matter are dropped first, starting from the last. Then each row that is not
yet covered is widened to a cube that contains no row where f is false. Finally each cube is
narrowed if that makes it shorter to write. Combinations of values that no row has may get either
result. The result is short, but not the shortest: covers are not searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

Cube = tuple[frozenset[int] | None, ...]


@dataclass(frozen=True)
class Cover:
    """A disjunction of cubes, perhaps negated.

    Attributes:
        cubes: For each cube the allowed values of every variable, None where all are allowed.
            Without any cube the disjunction is false; a cube of None alone is true.
        negated: Whether the function is the negation of the disjunction.
    """

    cubes: tuple[Cube, ...]
    negated: bool = False

    @property
    def cost(self) -> int:
        """The number of conditions in the written form."""
        conditions = sum(allowed is not None for cube in self.cubes for allowed in cube)
        return 2 * conditions + len(self.cubes) + self.negated


def support(rows: Int[np.ndarray, "row variable"], value: Int[np.ndarray, " row"]) -> list[int]:
    """Find a minimal set of variables that determines a value.

    Starting from all variables, the last one first, each variable that the others can do without
    is removed. No proper subset of the result determines the value, but a smaller set of other
    variables may.

    Args:
        rows: The variables' values ``[row, variable]``.
        value: The value of each row.

    Returns:
        The numbers of the variables, in increasing order.

    Raises:
        ValueError: if two rows agree in all variables and differ in the value.
    """
    if not decides(rows, value):
        raise ValueError("two rows are equal and their values differ")
    kept = list(range(rows.shape[1]))
    for variable in reversed(range(rows.shape[1])):
        fewer = [other for other in kept if other != variable]
        if decides(rows[:, fewer], value):
            kept = fewer
    return kept


def decides(rows: Int[np.ndarray, "row variable"], value: Int[np.ndarray, " row"]) -> bool:
    """Return whether the variables determine the value: equal rows have equal values."""
    if not rows.shape[1]:
        return bool((value == value[:1]).all())
    _, group = np.unique(rows, axis=0, return_inverse=True)
    group = group.reshape(-1)
    first = np.zeros(group.max() + 1, dtype=value.dtype)
    first[group] = value
    return bool((first[group] == value).all())


def cover(
    rows: Int[np.ndarray, "row variable"], wanted: Bool[np.ndarray, " row"], sizes: Sequence[int]
) -> Cover:
    """Find a cover of exactly the rows that are wanted.

    Args:
        rows: Values of the variables, ``[row, variable]``, counted from 0.
        wanted: The function's value on each row.
        sizes: The number of values of each variable.

    Raises:
        ValueError: if two rows are equal and only one is wanted.
    """
    kept = support(rows, wanted.astype(np.int64))
    small, index = np.unique(rows[:, kept], axis=0, return_index=True)
    truth, few = wanted[index], [sizes[variable] for variable in kept]
    found = [
        Cover(tuple(_cubes(small[truth == side], small[truth != side], few)), not side)
        for side in (True, False)
    ]
    best = min(found, key=lambda option: option.cost)
    wide = tuple(extend_cube(cube, kept, len(sizes)) for cube in best.cubes)
    return Cover(wide, best.negated)


def _cubes(on: np.ndarray, off: np.ndarray, sizes: Sequence[int]) -> list[Cube]:
    """Find cubes that cover ``on`` and contain no row of ``off``, without any that is not
    needed."""
    left = np.ones(len(on), dtype=bool)
    cubes: list[list[np.ndarray]] = []
    while left.any():
        seed = on[int(left.argmax())]
        orders = [range(len(sizes)), range(len(sizes) - 1, -1, -1)]
        options = [_expand_cube(seed, off, sizes, order) for order in orders]
        best = max(options, key=lambda cube: int((_inside(on, cube) & left).sum()))
        cubes.append(best)
        left &= ~_inside(on, best)
    held = [_inside(on, cube) for cube in cubes]
    for number in range(len(cubes)):
        others = [row for other, row in enumerate(held) if other != number]
        if others and np.any(others, axis=0).all():
            held[number] = np.zeros(len(on), dtype=bool)
    _narrow(cubes, on, held)
    kept = [cube for cube, row in zip(cubes, held, strict=True) if row.any()]
    return [
        tuple(None if all(a) else frozenset(np.flatnonzero(a).tolist()) for a in cube)
        for cube in kept
    ]


def _narrow(cubes: list[list[np.ndarray]], on: np.ndarray, held: list[np.ndarray]) -> None:
    """Remove allowed values whose rows other cubes cover, if the cube then has fewer values to
    name."""
    for number, cube in enumerate(cubes):
        others = [row for other, row in enumerate(held) if other != number]
        alone = held[number] & ~np.any([np.zeros(len(on), dtype=bool), *others], axis=0)
        for variable, allowed in enumerate(cube):
            needed = np.zeros_like(allowed)
            needed[on[alone, variable]] = True
            if needed.any() and not allowed.all() and _names(needed) < _names(allowed):
                cube[variable] = needed
                held[number] = held[number] & needed[on[:, variable]]


def _names(allowed: np.ndarray) -> int:
    """Return how many values must be named: the allowed ones, or the others if these are fewer."""
    return int(min(allowed.sum(), (~allowed).sum()))


def _expand_cube(
    seed: np.ndarray, off: np.ndarray, sizes: Sequence[int], order: Sequence[int]
) -> list[np.ndarray]:
    """Widen the cube of one row, variable by variable, as long as it contains no row of ``off``."""
    cube = [np.arange(size) == value for size, value in zip(sizes, seed, strict=True)]
    for variable in order:
        others = [v for v in range(len(sizes)) if v != variable]
        met = _inside(off[:, others], [cube[v] for v in others])
        blocked = np.zeros(sizes[variable], dtype=bool)
        blocked[off[met, variable]] = True
        if not blocked.any():
            cube[variable] = np.ones(sizes[variable], dtype=bool)
    for variable in order:  # what could not go wholly may still be widened
        others = [v for v in range(len(sizes)) if v != variable]
        met = _inside(off[:, others], [cube[v] for v in others])
        blocked = np.zeros(sizes[variable], dtype=bool)
        blocked[off[met, variable]] = True
        cube[variable] = ~blocked
    return cube


def _inside(rows: np.ndarray, cube: Sequence[np.ndarray]) -> np.ndarray:
    inside = np.ones(len(rows), dtype=bool)
    for variable, allowed in enumerate(cube):
        inside &= allowed[rows[:, variable]]
    return inside


def extend_cube(cube: Cube, kept: Sequence[int], variables: int) -> Cube:
    """Extend a cube over some of the variables to all of them; the others are unrestricted (None).

    Args:
        cube: The allowed values of each variable in ``kept``, in that order.
        kept: Indices of the variables that the cube is over.
        variables: Number of all variables.
    """
    known = dict(zip(kept, cube, strict=True))
    return tuple(known.get(variable) for variable in range(variables))
