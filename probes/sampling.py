"""Which positions of which rows probes read, and which rows must be in the same fold.

A causal model's activation at position p is a function of the tokens up to p. Two rows that begin
alike therefore have *equal* activations, and a probe fitted on one has seen the other: of 256
strings of two letters, those at position 4 are 30 points. So that what is held out is new:

    groups     equal rows are one group, a group is in one fold
    prefixes   each prefix has one fold at random among those of its rows: only there is it sampled

(the second for causal models and for those of which nobody knows; models that see the whole row
have equal activations in equal rows only). No activation is then on both sides by being the same
prefix, and all distinct prefixes can still be read. Not ruled out: prefixes that differ only in
what the model ignores, and prefixes that differ by a letter. Where few states are reached at all,
such as four of two bits, held-out activations are near seen ones, and the baselines say what that
is worth.

Positions are common to all rows where these are nearly all there is to sample (90 %); otherwise
each row has its own: one at random from each of as many equal stretches of those it has, early and
late ones alike. Their number is one that three quarters of the rows and some row of each fold have,
and the others are left out: samples that count twice would pass for evidence. (To a causal model
the end of a short row is the middle of a long one.) So whether probes can be fitted depends on the
rows, not on the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp.errors import ArgumentError
from interp.store.attention_mask import attention_mask_of
from probes.linear import FOLDS, folds_of

POSITIONS = 8
"""How many positions of a row are sampled by default."""

_NEARLY, _ENOUGH, _DRAWS = 0.9, 0.75, 20


@dataclass(frozen=True)
class SampledPositions:
    """The rows and positions at which activations are read.

    Attributes:
        rows: The rows that are kept, ascending.
        positions: The sampled positions of each kept row.
        groups: The group of each: equal rows have the same, in a random order;
            :func:`probes.linear.folds_of` makes folds of them.
    """

    rows: Int[np.ndarray, " kept"]
    positions: Int[np.ndarray, "kept sample"]
    groups: Int[np.ndarray, " kept"]

    def of(self, values: Any) -> Any:
        """The values of ``[row, pos, …]`` (array or tensor) at these places, ``[kept, sample,
        …]``."""
        return values[self.rows[:, None], self.positions]


def sample_positions(
    mask: Bool[np.ndarray, "row pos"],
    inputs: np.ndarray,
    *,
    count: int = POSITIONS,
    causal: bool = True,
    seed: int = 0,
) -> SampledPositions:
    """Sample positions of every row, and group the rows for cross-validation.

    Args:
        mask: Where rows are scored, ``[row, pos]``.
        inputs: ``[row, pos]`` tokens or ``[row, pos, channel]`` values.
        count: The largest number of positions per row.
        causal: Whether activations depend on nothing after their position.
        seed: Seed of the positions, where each row has its own.

    Raises:
        ArgumentError: if nothing is scored.
    """
    if not mask.any():
        raise ArgumentError("mask must score a position, got none: give rows with targets")
    rng = np.random.default_rng(seed)
    prefix, groups = _prefixes(inputs), groups_of(inputs, seed=seed)
    free = _free(mask, prefix, folds_of(groups), rng) if causal else mask
    if not free.any():
        raise ArgumentError("inputs must differ more, got equal ones wherever they are scored")
    common = np.flatnonzero(free.all(axis=0))
    if len(common) * len(free) >= _NEARLY * free.sum():
        chosen = _spread(common, min(count, len(common)))
        return SampledPositions(np.arange(len(free)), np.tile(chosen, (len(free), 1)), groups)
    sizes, folds = free.sum(axis=1), folds_of(groups)
    in_each = min(int(sizes[folds == fold].max()) for fold in np.unique(folds))
    count = max(1, min(count, in_each, int(np.quantile(sizes[sizes > 0], 1 - _ENOUGH))))
    which = np.flatnonzero(sizes >= count)
    own = np.array([_stratified(np.flatnonzero(free[row]), count, rng) for row in which])
    return SampledPositions(which, own, groups[which])


def groups_of(inputs: np.ndarray, *, seed: int | None = None) -> Int[np.ndarray, " row"]:
    """A number for each distinct row, in the order of their first coming, or in a random one."""
    numbers = _prefixes(inputs)[:, -1]
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    order = first if seed is None else np.random.default_rng(seed).permutation(len(first))
    groups: Int[np.ndarray, " row"] = np.argsort(np.argsort(order))[which]
    return groups


def is_causal(source: Any) -> bool:
    """Whether attention is causal according to a model's or store's spec; True without a spec."""
    seen = attention_mask_of(source)
    return seen is None or seen.causal


def sampled_positions(
    mask: Bool[np.ndarray, "row pos"], count: int = POSITIONS
) -> Int[np.ndarray, " sample"]:
    """At most ``count`` positions, evenly spread over those scored in every row.

    For rows that are scored at the same positions. Of rows of different lengths these are the
    first few alone: take :func:`places`, which also keeps shared prefixes apart.

    Raises:
        ArgumentError: if no position is scored in every row.
    """
    scored = np.flatnonzero(mask.all(axis=0))
    if not len(scored):
        raise ArgumentError("mask must leave a position scored in every row, got none: shorten it")
    return _spread(scored, min(count, len(scored)))


def _spread(scored: Int[np.ndarray, " scored"], count: int) -> Int[np.ndarray, " sample"]:
    return scored[np.linspace(0, len(scored) - 1, count).round().astype(int)]


def _stratified(
    scored: Int[np.ndarray, " scored"], count: int, rng: np.random.Generator
) -> Int[np.ndarray, " sample"]:
    """Draw one position at random from each of ``count`` equal stretches."""
    edges = np.linspace(0, len(scored), count + 1).astype(int)
    return scored[edges[:-1] + (rng.random(count) * np.diff(edges)).astype(int)]


def _prefixes(inputs: np.ndarray) -> Int[np.ndarray, "row pos"]:
    """A number for the prefix at each position, equal for rows that are equal up to there."""
    rows, length = inputs.shape[:2]
    _, codes = np.unique(inputs.reshape(rows * length, -1), axis=0, return_inverse=True)
    codes = codes.reshape(rows, length).astype(np.int64)
    found, now = np.empty_like(codes), np.zeros(rows, dtype=np.int64)
    for place in range(length):
        _, now = np.unique(now * (codes.max() + 1) + codes[:, place], return_inverse=True)
        found[:, place] = now
    return found


def _free(
    mask: Bool[np.ndarray, "row pos"],
    prefix: Int[np.ndarray, "row pos"],
    folds: Int[np.ndarray, " row"],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "row pos"]:
    """Where a row is scored and its prefix at home; drawn again if a fold is left without any."""
    wanted = len(np.unique(folds[mask.any(axis=1)]))
    for _ in range(_DRAWS):
        found = mask & _at_home(prefix, folds, rng)
        if len(np.unique(folds[found.any(axis=1)])) == wanted:
            break
    return found


def _at_home(
    prefix: Int[np.ndarray, "row pos"], folds: Int[np.ndarray, " row"], rng: np.random.Generator
) -> Bool[np.ndarray, "row pos"]:
    """True where a row is in the one fold that its prefix may be sampled in."""
    found = np.empty(prefix.shape, dtype=bool)
    for place, column in enumerate(prefix.T):
        pairs = rng.permutation(np.unique(column * FOLDS + folds))
        _, first = np.unique(pairs // FOLDS, return_index=True)
        found[:, place] = (pairs[first] % FOLDS)[column] == folds
    return found
