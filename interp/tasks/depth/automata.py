"""Exact counts and uniform draws of strings of a given length, by dynamic programming.

    C_0(s) = 1 if s accepts, else 0        C_r(s) = Σ_c C_{r−1}(step(s, c))

C_r(s) is the number of ways to finish from state s with r more symbols. A string is uniform among
the accepted ones when each symbol c is drawn with probability C_{r−1}(step(s, c)) / C_r(s). Counts
are exact integers; probabilities are their quotients rounded to float64. The complement is drawn
the same way with acceptance turned round. Memory is length × states × symbols.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int

__all__ = ["Automaton", "draw_codes", "number_of_strings"]


@dataclass(frozen=True)
class Automaton:
    """A deterministic automaton that starts in state 0.

    Attributes:
        step: State → symbol → next state.
        accepting: State → whether a string may end there.
    """

    step: tuple[tuple[int, ...], ...]
    accepting: tuple[bool, ...]


def number_of_strings(automaton: Automaton, length: int, *, member: bool = True) -> int:
    """How many strings of exactly this length are accepted (or, not ``member``, refused)."""
    return _counts(automaton, length, member)[length][0]


def draw_codes(
    automaton: Automaton,
    lengths: Int[np.ndarray, " batch"],
    generator: np.random.Generator,
    *,
    member: bool = True,
) -> Int[np.ndarray, "batch pos"]:
    """Uniform strings of these lengths: codes of symbols, −1 past the end.

    The caller makes sure that at least one such string of every length exists.
    """
    longest = int(lengths.max(initial=0))
    thresholds = _thresholds(automaton, longest, member)
    step = np.array(automaton.step)
    state = np.zeros(len(lengths), dtype=np.int64)
    codes = np.full((len(lengths), longest), -1, dtype=np.int64)
    for position in range(longest):
        rows = np.flatnonzero(lengths > position)
        limits = thresholds[lengths[rows] - position, state[rows]]
        symbol = (generator.random(len(rows))[:, None] >= limits).sum(axis=1)
        codes[rows, position] = symbol
        state[rows] = step[state[rows], symbol]
    return codes


@lru_cache(maxsize=64)
def _counts(automaton: Automaton, longest: int, member: bool) -> list[list[int]]:
    """How many ways there are to finish: entry [symbols left][state], exact integers."""
    table = [[int(good == member) for good in automaton.accepting]]
    for _ in range(longest):
        last = table[-1]
        table.append([sum(last[after] for after in row) for row in automaton.step])
    return table


@lru_cache(maxsize=64)
def _thresholds(automaton: Automaton, longest: int, member: bool) -> np.ndarray:
    """Cumulative probabilities [symbols left, state, symbol]: a uniform number u draws the first
    symbol whose threshold exceeds u."""
    counts = _counts(automaton, longest, member)
    symbols = len(automaton.step[0])
    limits = np.ones((longest + 1, len(automaton.step), symbols - 1))
    for left in range(1, longest + 1):
        for state, row in enumerate(automaton.step):
            total, below = counts[left][state], 0
            if total == 0:
                continue
            for symbol in range(symbols - 1):
                below += counts[left - 1][row[symbol]]
                limits[left, state, symbol] = below / total
    return limits
