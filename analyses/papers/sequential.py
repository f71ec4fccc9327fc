"""Seeds taken in turn, until the rest could hardly change what a rule says of them.

A rule asks of a cell (a setting that all seeds are trained in) whether at least k of n seeds hold;
that the median of an odd number is at most a level asks it of (n + 1)/2. After s seeds that hold
and f that do not the answer is settled

    exactly       if s ≥ k or f > n − k
    at an error   if stopping there keeps the odds of another answer than that of all n seeds within
                  the cell's error, whatever the share p of seeds that hold: the largest over p of
                  Σ over stops of P(first stop is there) · P(all n seeds say otherwise | there)

Stops are chosen before any seed is taken, the earliest first, of equals the most one-sided. A
verdict's error of 5 % is shared evenly by all that it asks of its cells, so with many cells, or few
seeds, stops are the exact ones. Shares and intervals over the seeds that were taken are biased by
stopping; what is settled is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
from scipy.stats import binom

__all__ = ["ERROR", "in_turn", "seeds_missing"]

ERROR = 0.05
"""Largest probability that a verdict differs from that of all seeds because seeds were left out."""

_SHARES = np.linspace(0, 1, 401)
_Cell = TypeVar("_Cell")
_Stops = frozenset[tuple[int, int]]


def in_turn(
    seeds: Sequence[int],
    needed: Mapping[_Cell, Sequence[int]],
    ask: Callable[[list[tuple[_Cell, int]]], Sequence[Sequence[bool]]],
) -> None:
    """Train a few seeds of each cell at a time, until everything that the rule asks is settled.

    Args:
        seeds: All seeds that may be taken, in order.
        needed: Cell → for each thing that is asked about it, the number of seeds that must hold.
        ask: A function that trains (cell, seed) pairs and returns, for each pair, whether each
            thing holds.
    """
    error = ERROR / max(1, sum(map(len, needed.values())))
    held: dict[_Cell, list[Sequence[bool]]] = {cell: [] for cell in needed}

    def missing(cell: _Cell) -> int:
        answers = zip(*held[cell], strict=True) if held[cell] else [()] * len(needed[cell])
        both = zip(needed[cell], answers, strict=True)
        return max(seeds_missing(list(a), k, len(seeds), error) for k, a in both)

    while cases := [
        (cell, seed)
        for cell, answers in held.items()
        for seed in seeds[len(answers) : len(answers) + missing(cell)]
    ]:
        for (cell, _), answer in zip(cases, ask(cases), strict=True):
            held[cell].append(answer)


def seeds_missing(held: Sequence[bool], needed: int, planned: int, error: float) -> int:
    """Return how many more seeds are needed, at the least, before it may be settled whether enough
    hold; 0 if it is settled.

    Args:
        held: For each seed taken so far, whether the thing asked about holds.
        needed: The number of seeds of which it must hold.
        planned: The number of seeds that may be taken in all.
        error: The largest probability of an answer that differs from that of all seeds.
    """
    stops, yes = _stops(needed, planned, error), sum(held)
    no = len(held) - yes
    return next(
        more
        for more in range(planned + 1)
        if any(
            _exact(s, f, needed, planned) or (s, f) in stops
            for s, f in ((yes + n, no + more - n) for n in range(more + 1))
        )
    )


def _exact(yes: int, no: int, needed: int, planned: int) -> bool:
    return yes >= needed or no > planned - needed


@cache
def _stops(needed: int, planned: int, error: float) -> _Stops:
    """Return the pairs (seeds that hold, seeds that do not) at which sampling stops early although
    the answer is not certain yet."""
    stops: _Stops = frozenset()
    for taken in range(1, planned):
        level = taken * needed / planned
        for yes in sorted(range(taken + 1), key=lambda yes: -abs(yes - level)):
            one = (yes, taken - yes)
            if not _exact(*one, needed, planned):
                more = stops | {one}
                stops = more if _risk(more, needed, planned) <= error else stops
    return stops


def _risk(stops: _Stops, needed: int, planned: int) -> float:
    """Return the probability that stopping gives another answer than all seeds would, for the share
    of seeds that hold with which it is largest."""
    reached = {(0, 0): np.ones_like(_SHARES)}
    wrong = np.zeros_like(_SHARES)
    for taken in range(planned):
        for yes in range(taken + 1):
            one = (yes, taken - yes)
            odds = reached.pop(one, None)
            if odds is None or _exact(*one, needed, planned):
                continue
            if one in stops:
                enough = binom.sf(needed - yes - 1, planned - taken, _SHARES)
                wrong += odds * (1 - enough if yes * planned >= needed * taken else enough)
                continue
            for more, share in (((yes + 1, one[1]), _SHARES), ((yes, one[1] + 1), 1 - _SHARES)):
                reached[more] = reached.get(more, np.zeros_like(_SHARES)) + odds * share
    return float(wrong.max())
