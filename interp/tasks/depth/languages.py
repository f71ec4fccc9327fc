"""The languages of the depth tasks, by name.

    L_k        k alternating blocks of a and b, a first (L_4 = a⁺b⁺a⁺b⁺)
    D_k        L_{2k−1}, with its two-sided program of depth k for membership
    J_w        strings with w as a subsequence, over w's letters and one more if it has only one
    dyck-1     balanced brackets         majority   more a than b         anbncn   aⁿbⁿcⁿ, n ≥ 1

For each language, the number of strings of a given length in it (and not in it) is computed
exactly, and such strings are drawn uniformly. Both are done by dynamic programming:

    C_0(s) = 1 if s accepts, else 0        C_r(s) = Σ_c C_{r−1}(step(s, c))

C_r(s) is the number of ways to finish from state s with r more symbols. A string is uniform among
the accepted ones if each symbol c is drawn with probability C_{r−1}(step(s, c)) / C_r(s). Counts
are exact integers; probabilities are their quotients rounded to float64. The complement is drawn in
the same way with acceptance negated. Memory is length × states × symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int

from interp.errors import ArgumentError
from interp.program.languages import (
    block_word,
    dyck_program,
    equal_blocks_program,
    majority_program,
    membership_program,
    prediction_program,
    subsequence_program,
    two_sided_program,
)
from interp.program.syntax import Program


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
    """Return the number of strings of exactly ``length`` symbols that the automaton accepts.

    With ``member=False`` it is the number that the automaton rejects.
    """
    return _counts(automaton, length, member)[length][0]


def draw_codes(
    automaton: Automaton,
    lengths: Int[np.ndarray, " batch"],
    generator: np.random.Generator,
    *,
    member: bool = True,
) -> Int[np.ndarray, "batch pos"]:
    """Draw uniform strings of these lengths, as codes of symbols, −1 past the end.

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
    """Return how many ways there are to finish: entry [symbols left][state], exact integers."""
    table = [[int(good == member) for good in automaton.accepting]]
    for _ in range(longest):
        last = table[-1]
        table.append([sum(last[after] for after in row) for row in automaton.step])
    return table


@lru_cache(maxsize=64)
def _thresholds(automaton: Automaton, longest: int, member: bool) -> np.ndarray:
    """Return cumulative probabilities [symbols left, state, symbol]: a uniform number u draws the
    first symbol whose threshold exceeds u."""
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


NAMES = "L_k, D_k (as in L_4), J_w (as in J_aba), dyck-1, anbncn, majority"
_NUMBERED = re.compile(r"([LD])_([1-9][0-9]?)")
_SUBSEQUENCE = re.compile(r"J_([a-z]+)")
_Lengths = Int[np.ndarray, " batch"]
_Codes = Int[np.ndarray, "batch pos"]


@dataclass(frozen=True)
class Language:
    """A language with its programs, its exact counts and its uniform draws.

    Attributes:
        name: The name it was requested by, such as ``L_4``.
        letters: The language's alphabet, sorted: code c stands for ``letters[c]``.
        membership: The program whose last line says, at the last position, whether a string is in
            the language.
        prediction: The program whose last line says at every position, for strings that are in the
            language, whether the prefix read so far is in it too.
        automaton: A function from a longest length to an automaton that is right for all strings up
            to it.
    """

    name: str
    letters: tuple[str, ...]
    membership: Program
    prediction: Program
    automaton: Callable[[int], Automaton]

    def size(self, length: int, *, member: bool = True) -> int:
        """Return how many strings of this length are in the language (or, not ``member``, are
        not)."""
        return number_of_strings(self.automaton(length), length, member=member)

    def draw(
        self, lengths: _Lengths, generator: np.random.Generator, *, member: bool = True
    ) -> _Codes:
        """Draw uniform strings of these lengths, in the language or not, as codes with −1 past the
        end."""
        longest = int(lengths.max(initial=0))
        return draw_codes(self.automaton(longest), lengths, generator, member=member)


class EqualBlocks(Language):
    """The language aⁿbⁿcⁿ, which has one string of every length that three divides."""

    def size(self, length: int, *, member: bool = True) -> int:
        """Return how many strings of this length are in the language, 0 or 1; or how many are
        not."""
        members = int(length > 0 and length % 3 == 0)
        return members if member else 3**length - members

    def draw(
        self, lengths: _Lengths, generator: np.random.Generator, *, member: bool = True
    ) -> _Codes:
        """Draw the only member of each length; or, not ``member``, uniform strings that are no
        members."""
        place = np.arange(int(lengths.max(initial=0)))
        blocks = np.where(place < lengths[:, None], 3 * place // lengths[:, None], -1)
        if member:
            return blocks
        codes = generator.integers(0, 3, blocks.shape)
        while (same := ((codes == blocks) | (blocks < 0)).all(axis=1) & (lengths % 3 == 0)).any():
            codes[same] = generator.integers(0, 3, (int(same.sum()), blocks.shape[1]))
        return np.where(blocks < 0, -1, codes)


@lru_cache(maxsize=64)
def language(name: str) -> Language:
    """Return the language with this name.

    Raises:
        ArgumentError: if the name is none of :data:`NAMES`.
    """
    if found := _NUMBERED.fullmatch(name):
        k = int(found[2])
        blocks = k if found[1] == "L" else 2 * k - 1
        program = membership_program(k) if found[1] == "L" else two_sided_program(k)
        prediction = prediction_program(blocks) if blocks > 1 else membership_program(1)
        return _language(name, "ab", program, prediction, _for_every_length(_blocks(blocks)))
    if found := _SUBSEQUENCE.fullmatch(name):
        word, letters = found[1], "".join(sorted(set(found[1])))
        letters += ("b" if letters == "a" else "a") if len(letters) == 1 else ""
        program, letters = subsequence_program(word), "".join(sorted(letters))
        return _language(
            name, letters, program, program, _for_every_length(_subsequence(word, letters))
        )
    if name == "dyck-1":
        return _language(name, "()", dyck_program(), dyck_program(), _dyck)
    if name == "majority":
        return _language(name, "ab", majority_program(), majority_program(), _majority)
    if name == "anbncn":
        program = equal_blocks_program()
        none = _for_every_length(Automaton(((0, 0, 0),), (False,)))
        return EqualBlocks(name, ("a", "b", "c"), program, program, none)
    raise ArgumentError(f"language must be one of {NAMES}, got {name!r}: pick one")


def _language(
    name: str,
    letters: str,
    program: Program,
    prediction: Program,
    automaton: Callable[[int], Automaton],
) -> Language:
    return Language(name, tuple(letters), program, prediction, automaton)


def _for_every_length(automaton: Automaton) -> Callable[[int], Automaton]:
    """Return a function of the longest length that always returns this automaton."""
    return lambda longest: automaton


def _blocks(k: int) -> Automaton:
    """Return the automaton of k blocks: state j ≤ k means in block j, state k + 1 means
    rejected."""
    word = block_word(k)
    step = [(1, k + 1)]
    for block in range(1, k + 1):
        after = block + 1
        step.append((block, after) if word[block - 1] == "a" else (after, block))
    return Automaton((*step, (k + 1, k + 1)), tuple(j == k for j in range(k + 2)))


def _subsequence(word: str, letters: str) -> Automaton:
    """Return the automaton of strings with ``word`` as a subsequence: state j has found j
    letters."""
    step = [tuple(j + (letter == wanted) for letter in letters) for j, wanted in enumerate(word)]
    end = len(word)
    return Automaton((*step, (end,) * len(letters)), tuple(j == end for j in range(end + 1)))


@lru_cache(maxsize=16)
def _dyck(longest: int) -> Automaton:
    """Return the automaton of balanced brackets: state h has h open brackets, the last state
    rejects."""
    lost = longest + 1
    step = [(min(h + 1, lost), h - 1 if h else lost) for h in range(lost)]
    return Automaton((*step, (lost, lost)), tuple(h == 0 for h in range(lost + 1)))


@lru_cache(maxsize=16)
def _majority(longest: int) -> Automaton:
    """Return the automaton that counts how many more a than b were read, up to ``longest``.

    A lead d ≥ 0 is state 2d, a lead d < 0 is state −2d − 1.
    """
    states = 2 * longest + 2

    def state(lead: int) -> int:
        lead = max(-longest, min(longest, lead))
        return 2 * lead if lead >= 0 else -2 * lead - 1

    leads = [s // 2 if s % 2 == 0 else -(s + 1) // 2 for s in range(states)]
    step = tuple((state(lead + 1), state(lead - 1)) for lead in leads)
    return Automaton(step, tuple(lead > 0 for lead in leads))
