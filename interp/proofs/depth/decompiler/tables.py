"""What a layer's network computes, as a finite table: state before × comparisons → state after.

    1  evaluate the network on all states, with many counts of tokens of each class
    2  where two counts have different effects, add comparisons of neurons that bend between them
       (:mod:`interp.proofs.depth.decompiler.network`), until the comparisons separate all effects
    3  evaluate again next to all comparisons found, where a mistake would show
    4  keep few of the comparisons, simple ones first
    5  evaluate every combination of their outcomes that some counts have

The table is exact for the counts that were evaluated. For all others it is exact if step 2 missed
no comparison and the network bends at comparisons only.

*Counts* (how many tokens of each class came so far) are drawn at random, next to given comparisons,
and in given cells. The network can be evaluated on any counts, whether or not a short string has
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import Bounds, LinearConstraint, milp

from interp.proofs.depth.decompiler.network import (
    Bend,
    Inputs,
    Layer,
    NotCountingError,
    bends,
    outputs,
)

_TOLERANCE = 1e-6


class Codes:
    """Distinct vectors, numbered in the order in which they were first seen.

    Args:
        width: Length of the vectors.
        scale: The size of typical entries: two vectors are equal if no entry differs by more than
            about a millionth of it.
    """

    def __init__(self, width: int, scale: float) -> None:
        self.vectors: Float[np.ndarray, "code width"] = np.zeros((0, width))
        self._step = _TOLERANCE * (scale or 1.0)
        self._offset = np.modf(0.317 + 0.618 * np.arange(width))[0]

    def __len__(self) -> int:
        return len(self.vectors)

    def of(self, vectors: Float[np.ndarray, "row width"]) -> Int[np.ndarray, " row"]:
        """Return each vector's number; new vectors get new numbers."""
        grid = np.floor(vectors / self._step + self._offset).astype(np.int64)
        _, first, inverse = np.unique(grid, axis=0, return_index=True, return_inverse=True)
        numbers = np.array([self._number(vectors[row]) for row in first], dtype=np.int64)
        return np.asarray(numbers[inverse.reshape(-1)])

    def _number(self, vector: np.ndarray) -> int:
        off = np.abs(self.vectors - vector).max(axis=1, initial=0.0)
        if len(off) and off.min() <= 2 * self._step:
            return int(off.argmin())
        self.vectors = np.concatenate([self.vectors, vector[None]])
        return len(self.vectors) - 1


Counts = Int[np.ndarray, "row classes"]
_SHORT = 12


def draw_counts(rows: int, classes: int, longest: int, generator: np.random.Generator) -> Counts:
    """Draw counts of tokens with sums from 1 to ``longest``, small sums more often, most classes
    empty."""
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
    """Move starting counts to where comparisons just hold or just fail.

    Each start is moved to the edge of one comparison or of several in turn, each time by changing
    the count of a single class; only moves that keep counts valid are made.
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
    """Find counts with low ≤ Σ w n ≤ high for every form; None if no string up to this length has
    any.

    Args:
        weights: The weights w of each form.
        low: The lower bound of each form; −inf for none.
        high: The upper bound of each form; inf for none.
        longest: The largest sum of counts.
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


_ASKED = 150_000
_DRAWN = 400
_REGIONS = 60
_CELLS = 400
_MOST_STATES = 256


@dataclass(frozen=True)
class Number:
    """The number Σ_q weights[q] n_q and the thresholds that it is compared with.

    Attributes:
        weights: One per class.
        thresholds: The thresholds in ascending order; the number is in interval t if it reaches the
            first t of them.
        bends: The neuron that each threshold was read from.
    """

    weights: tuple[int, ...]
    thresholds: tuple[int, ...]
    bends: tuple[Bend, ...]

    def interval(self, counts: Int[np.ndarray, "row classes"]) -> Int[np.ndarray, " row"]:
        """Return how many thresholds are reached."""
        value = counts @ np.array(self.weights, dtype=np.int64)
        return np.asarray(np.searchsorted(np.array(self.thresholds), value, side="right"))


@dataclass(frozen=True)
class EffectTable:
    """The function of a layer's network, as a table.

    Attributes:
        numbers: The numbers that are compared.
        cells: The intervals of the numbers, ``[cell, number]``, in all combinations that occurred.
        after: The state after the layer, ``[state, cell]``.
    """

    numbers: tuple[Number, ...]
    cells: Int[np.ndarray, "cell number"]
    after: Int[np.ndarray, "state cell"]


@dataclass
class _Asked:
    """All counts that were evaluated so far, and the resulting states."""

    layer: Layer
    inputs: Inputs
    codes: Codes
    longest: int
    generator: np.random.Generator
    counts: np.ndarray = field(init=False)
    effects: np.ndarray = field(init=False)
    found: dict[tuple[tuple[int, ...], int], Bend] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.states = len(self.inputs.base)
        self.classes = len(self.inputs.points) - 1
        self.counts = np.zeros((0, self.classes), dtype=np.int64)
        self.effects = np.zeros((self.states, 0), dtype=np.int64)

    def ask(self, counts: Int[np.ndarray, "row classes"]) -> None:
        """Evaluate the layer's network on all states, for each of these rows of token counts.

        The rows and the codes of the resulting states are appended to ``counts`` and ``effects``.
        Rows that were evaluated before are skipped. If there are more than the limit on
        evaluations allows, a random choice of them is taken.

        Args:
            counts: How many tokens of each class have come so far.

        Raises:
            NotCountingError: if the network produces too many different states.
        """
        known = {row.tobytes() for row in self.counts}
        fresh = np.unique(counts, axis=0)
        fresh = fresh[[row.tobytes() not in known for row in fresh]]
        room = max(_ASKED // self.states - len(self.counts), 0)
        fresh = self.generator.permutation(fresh)[:room]
        if not len(fresh):
            return
        effects, average = [], self.inputs.average(fresh)
        for base in self.inputs.base:
            effects.append(self.codes.of(outputs(self.layer, base[None], average)))
            if len(self.codes) > _MOST_STATES:
                raise NotCountingError(
                    f"what is read of the stream after a layer takes more than {_MOST_STATES} "
                    "values besides the averages: its network writes numbers, not truth values"
                )
        self.counts = np.concatenate([self.counts, fresh])
        self.effects = np.concatenate([self.effects, np.array(effects)], axis=1)

    def look(self, state: int, row: int) -> bool:
        """Read the comparisons in one input's linear region; return whether there was a new one."""
        before = len(self.found)
        region = bends(self.layer, self.inputs, state, self.counts[row], self.longest, self.seen)
        for bend in region:
            key = (bend.comparison.weights, bend.comparison.threshold)
            self.found.setdefault(key, bend)
        return len(self.found) > before

    def bits(self) -> Bool[np.ndarray, "row forms"]:
        """Return whether each row's counts satisfy each comparison found: weights · counts ≥
        threshold."""
        weights = np.array([weights for weights, _ in self.found], dtype=np.int64)
        thresholds = np.array([threshold for _, threshold in self.found], dtype=np.int64)
        values = self.counts @ weights.reshape(len(weights), self.classes).T
        return np.asarray(values >= thresholds)

    def columns(self) -> Int[np.ndarray, " row"]:
        """Return one number per row of counts; rows with the same effect on all states have the
        same number."""
        _, column = np.unique(self.effects, axis=1, return_inverse=True)
        return np.asarray(column.reshape(-1))


def tabulate(
    layer: Layer, inputs: Inputs, codes: Codes, longest: int, generator: np.random.Generator
) -> EffectTable:
    """Tabulate a layer's network.

    Args:
        layer: The layer whose network is tabulated.
        inputs: States before and class points.
        codes: Numbers of the states that later layers distinguish; new states are added.
        longest: The largest number of tokens.
        generator: Random generator of the counts to evaluate.

    Raises:
        NotCountingError: if the network is no function of comparisons of counts.
    """
    asked = _Asked(layer, inputs, codes, longest, generator)
    ones = np.eye(asked.classes, dtype=np.int64)
    asked.ask(np.concatenate([ones, draw_counts(_DRAWN, asked.classes, longest, generator)]))
    for _ in range(_REGIONS):
        asked.look(
            int(generator.integers(asked.states)), int(generator.integers(asked.counts[:, 0].size))
        )
    for _ in range(3):
        _separate(asked)
        if asked.found:
            weights = np.array([w for w, _ in asked.found], dtype=np.int64)
            edges = np.array([t for _, t in asked.found], dtype=np.int64)
            rows = min(_DRAWN + 4 * len(edges), 1200)
            starts = draw_counts(rows, asked.classes, longest, generator)
            asked.ask(at_thresholds(weights, edges, starts, longest, generator))
    _separate(asked)
    numbers = _numbers(asked, _choose(asked))
    _complete(asked, numbers)
    return _table(asked, numbers)


def _separate(asked: _Asked) -> None:
    """Read linear regions until the comparisons separate all counts that differ in effect.

    Raises:
        NotCountingError: if no neuron bends at a comparison that separates two of them.
    """
    while (pair := _conflict(asked)) is not None:
        first, second = pair
        states = np.flatnonzero(asked.effects[:, first] != asked.effects[:, second])
        looks = [asked.look(int(s), row) for s in states[:4] for row in (first, second)]
        if not any(looks):
            raise NotCountingError(
                "no comparison of counts with whole numbers tells apart what the network of a "
                "layer treats differently"
            )


def _conflict(asked: _Asked) -> tuple[int, int] | None:
    """Return two rows of counts with the same outcome of all comparisons but different effects, or
    None."""
    bits, column = asked.bits(), asked.columns()
    _, group = np.unique(np.packbits(bits, axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    if not bits.shape[1]:
        group = np.zeros(len(column), dtype=np.int64)
    first = np.full(group.max() + 1, -1)
    first[group[::-1]] = np.arange(len(group))[::-1]
    wrong = np.flatnonzero(column[first[group]] != column)
    return (int(first[group[wrong[0]]]), int(wrong[0])) if len(wrong) else None


def _choose(asked: _Asked) -> list[int]:
    """Choose few comparisons that still separate all effects, preferring simple ones."""
    bits, column = asked.bits(), asked.columns()
    forms = list(asked.found)
    order = sorted(range(len(forms)), key=lambda f: _complexity(*forms[f]))
    _, first = np.unique(bits[:, order], axis=1, return_index=True)
    kept = [order[place] for place in sorted(first)]
    salt = asked.generator.integers(1, 2**62, len(forms)).astype(np.uint64)
    keys = bits.astype(np.uint64) * salt
    total = keys[:, kept].sum(axis=1, dtype=np.uint64)
    for form in reversed(list(kept)):
        fewer = total - keys[:, form]
        if _decides(fewer, column):
            kept.remove(form)
            total = fewer
    return kept


def _complexity(weights: tuple[int, ...], threshold: int) -> tuple[int, int, int]:
    distinct = len(set(weights) - {0})
    return distinct, max(abs(w) for w in weights), abs(threshold)


def _decides(key: np.ndarray, value: np.ndarray) -> bool:
    _, group = np.unique(key, return_inverse=True)
    first = np.zeros(group.max(initial=-1) + 1, dtype=value.dtype)
    first[group] = value
    return bool((first[group] == value).all())


def _numbers(asked: _Asked, chosen: list[int]) -> tuple[Number, ...]:
    """Group the chosen comparisons by the number that they compare."""
    grouped: dict[tuple[int, ...], list[tuple[int, Bend]]] = {}
    for place, ((weights, threshold), bend) in enumerate(asked.found.items()):
        if place in chosen:
            grouped.setdefault(weights, []).append((threshold, bend))
    numbers = []
    for weights, compared in sorted(grouped.items(), key=lambda item: _complexity(item[0], 0)):
        rising = sorted(compared, key=lambda pair: pair[0])
        thresholds, found = zip(*rising, strict=True)
        numbers.append(Number(weights, thresholds, found))
    return tuple(numbers)


def _complete(asked: _Asked, numbers: tuple[Number, ...]) -> None:
    """Evaluate combinations of outcomes that have not occurred so far but that some counts have."""
    sizes = [len(number.thresholds) + 1 for number in numbers]
    if not numbers or np.prod(sizes, dtype=float) > _CELLS:
        return
    met = {tuple(row) for row in _intervals(asked, numbers)}
    weights = np.array([number.weights for number in numbers])
    for cell in product(*(range(size) for size in sizes)):
        if cell not in met:
            bounds = [_bounds(number, t) for number, t in zip(numbers, cell, strict=True)]
            low, high = zip(*bounds, strict=True)
            counts = in_cell(weights, low, high, asked.longest)
            if counts is not None:
                asked.ask(counts[None])


def _bounds(number: Number, interval: int) -> tuple[float, float]:
    edges = [-np.inf, *(float(threshold) for threshold in number.thresholds), np.inf]
    return edges[interval], edges[interval + 1] - 1.0


def _intervals(asked: _Asked, numbers: tuple[Number, ...]) -> np.ndarray:
    columns = [number.interval(asked.counts) for number in numbers]
    return np.array(columns, dtype=np.int64).reshape(len(numbers), len(asked.counts)).T


def _table(asked: _Asked, numbers: tuple[Number, ...]) -> EffectTable:
    cells, first = np.unique(_intervals(asked, numbers), axis=0, return_index=True)
    return EffectTable(numbers, cells, asked.effects[:, first])


def overlaps(first: Number, second: Number) -> Iterator[tuple[int, int]]:
    """Yield pairs of intervals, of two sets of thresholds for the same number, that have a common
    value."""
    for one in range(len(first.thresholds) + 1):
        for other in range(len(second.thresholds) + 1):
            (low, high), (low2, high2) = _bounds(first, one), _bounds(second, other)
            if max(low, low2) <= min(high, high2):
                yield one, other
