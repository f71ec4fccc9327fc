"""Short formulas that decide as a model does: small trees over columns, written as conditions.

A tree is grown leaf by leaf, each time where it mends most (Gini impurity, summed over decisions);
of columns that mend within two per cent as much the simplest is asked. Trees are then written as
formulas and shortened. Growing is greedy: a decision that no single question helps with (parity) is
not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.rasp.syntax import And, Boolean, Compare, Expression, Not, Number, Or
from probes.decompile.columns import Column

__all__ = ["Questions", "Tree", "grow", "negated"]

_NEARLY = 0.98
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}


@dataclass(frozen=True)
class Tree:
    """A formula that was grown, and what it asks.

    Attributes:
        formula: As a condition.
        columns: Asked by it.
        leaves: How many it has.
        wrong: Decisions that it takes otherwise than was wanted.
    """

    formula: Expression
    columns: tuple[Column, ...]
    leaves: int
    wrong: int


class Questions:
    """Columns side by side, so that all are tried at once.

    Args:
        columns: At least one decision each, all of as many.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        values = np.stack([c.values for c in columns]) if columns else np.zeros((0, 0), np.int64)
        self.low = values.min(1) if values.size else np.zeros(len(columns), dtype=np.int64)
        values = values - self.low[:, None]
        self._width = int(values.max()) + 1 if values.size else 1
        self._bins = values + self._width * np.arange(len(columns))[:, None]
        self._costs = np.array([c.cost for c in columns], dtype=np.float64)

    def best(
        self, mine: NDArray[np.bool_], where: NDArray[np.int64]
    ) -> tuple[float, Column, int] | None:
        """(what it mends, the column, its threshold) of the simplest of the best cuts of some
        decisions."""
        total, yes = len(mine), int(mine.sum())
        if yes in (0, total) or not self.columns or self._width == 1:
            return None
        bins = self._bins[:, where]
        shape = (len(self.columns), self._width)
        size, ones = (
            np.bincount(b.ravel(), minlength=shape[0] * shape[1]).reshape(shape)
            for b in (bins, bins[:, mine])
        )
        left, left_yes = size.cumsum(1)[:, :-1], ones.cumsum(1)[:, :-1]
        cut = _impurity(left, left_yes) + _impurity(total - left, yes - left_yes)
        base = _impurity(np.array([total]), np.array([yes]))[0]
        at = cut.argmin(1)
        mended = base - cut[np.arange(shape[0]), at]
        if mended.max() <= 1e-9:
            return None
        good = np.flatnonzero(mended >= _NEARLY * mended.max())
        pick = int(good[np.lexsort((-mended[good], self._costs[good]))[0]])
        return float(mended[pick]), self.columns[pick], int(self.low[pick] + at[pick])


@dataclass(eq=False)
class _Leaf:
    where: NDArray[np.int64]
    value: bool
    wrong: int
    split: tuple[float, Column, int] | None
    children: tuple[_Leaf, _Leaf] | None = None


def grow(
    asked: Questions,
    wanted: NDArray[np.bool_],
    most: int,
    *,
    among: NDArray[np.int64] | None = None,
) -> list[Tree]:
    """Trees of one leaf, two, … ``most``, as long as another mends anything.

    Args:
        asked: What may be asked.
        wanted: What is to be decided.
        most: Leaves, at most.
        among: Decisions that count; all by default.
    """
    root = _leaf(asked, wanted, np.arange(len(wanted)) if among is None else among)
    leaves, found = [root], [_tree(root, [root])]
    while len(leaves) < most:
        ready = [leaf for leaf in leaves if leaf.split is not None]
        if not ready:
            break
        best = max(ready, key=lambda leaf: leaf.split[0] if leaf.split else 0.0)
        leaves.remove(best)
        leaves += _cut(best, asked, wanted)
        found.append(_tree(root, leaves))
    return found


def _leaf(asked: Questions, wanted: NDArray[np.bool_], where: NDArray[np.int64]) -> _Leaf:
    mine = wanted[where]
    value = bool(mine.mean() >= 0.5) if len(mine) else False
    wrong = int((mine != value).sum())
    return _Leaf(where, value, wrong, asked.best(mine, where))


def _impurity(size: NDArray[Any], yes: NDArray[Any]) -> NDArray[np.float64]:
    size = np.maximum(size, 1e-12)
    return np.asarray(2 * yes * (size - yes) / size)


def _cut(leaf: _Leaf, asked: Questions, wanted: NDArray[np.bool_]) -> tuple[_Leaf, _Leaf]:
    if leaf.split is None:
        raise ValueError("a leaf without a cut cannot be cut")
    _, column, threshold = leaf.split
    low = column.values[leaf.where] <= threshold
    leaf.children = (
        _leaf(asked, wanted, leaf.where[low]),
        _leaf(asked, wanted, leaf.where[~low]),
    )
    return leaf.children


def _tree(root: _Leaf, leaves: Sequence[_Leaf]) -> Tree:
    asked: list[Column] = []
    formula = _written(root, asked)
    return Tree(formula, tuple(asked), len(leaves), sum(leaf.wrong for leaf in leaves))


def _written(leaf: _Leaf, asked: list[Column]) -> Expression:
    if leaf.children is None or leaf.split is None:
        return Boolean(leaf.value)
    _, column, threshold = leaf.split
    mine: list[Column] = []
    low, high = (_written(child, mine) for child in leaf.children)
    if low == high:
        asked += mine if not isinstance(low, Boolean) else []
        return low
    asked += [column, *mine]
    if column.number:
        return joined(_at_most(column, threshold), low, high)
    return joined(column.expression, high, low)


def _at_most(column: Column, threshold: int) -> Expression:
    """That a number is at most so much; that it is its bound, where the bound is next."""
    if column.least == threshold:
        return Compare("==", column.expression, Number(threshold))
    if column.most is not None and column.most - 1 == threshold:
        return Compare("!=", column.expression, Number(column.most))
    return Compare("<=", column.expression, Number(threshold))


def joined(condition: Expression, then: Expression, other: Expression) -> Expression:
    """``then`` where the condition holds and ``other`` elsewhere, as short as it goes."""
    match then, other:
        case Boolean(True), Boolean(False):
            return condition
        case Boolean(False), Boolean(True):
            return negated(condition)
        case Boolean(True), _:
            return Or(condition, other)
        case Boolean(False), _:
            return And(negated(condition), other)
        case _, Boolean(False):
            return And(condition, then)
        case _, Boolean(True):
            return Or(negated(condition), then)
    return Or(And(condition, then), And(negated(condition), other))


def negated(condition: Expression) -> Expression:
    """The opposite of a condition."""
    if isinstance(condition, Compare) and condition.relation in ("==", "!="):
        return Compare(_OPPOSITE[condition.relation], condition.left, condition.right)  # type: ignore[arg-type]
    if isinstance(condition, Compare) and isinstance(condition.right, Number):
        if condition.relation == "<=":
            return Compare(">=", condition.left, Number(condition.right.value + 1))
        return Compare(_OPPOSITE[condition.relation], condition.left, condition.right)  # type: ignore[arg-type]
    return Not(condition)
