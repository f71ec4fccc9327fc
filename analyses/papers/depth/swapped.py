"""Claim: no program of depth k − 3 predicts L_k, whatever its numbers.

Two prefixes of strings of L_k, of which one has k − 2 blocks and the other k, differ in the order
of two symbols:

    w X Y Y      and      w Y X Y,      w of k − 3 blocks, X the letter of its last one

*Why nothing of depth k − 3 tells them apart.* The class of a position at level 0 is its letter. At
level j + 1 it is the class at level j and which of the comparisons hold

    Σ_c e_c N_c ≥ v,      |e_c|, |v| ≤ B      (N_c: how many positions so far have class c, level j)

Counts of formulas of depth j are sums of the N_c. So formulas of depth j + 1 are the same on all
positions of a class if their numbers are up to B: the factors of each comparison add up to at most
B, signs aside, and the number it compares with is at most B. Let all symbols after w have, at level
j, a class that depends on their letter alone, x or y. Then the counts at these places differ in N_x
and N_y only, by at most 2, and the same holds at level j + 1 if

    |Σ_c e_c N_c| > 4B  at the end of w, for all e with e_x or e_y other than 0

which blocks of very different lengths bring about: then no bounded sum of counts comes near 0. At
level k − 4 both ends have the same class and the same counts, since both have one X and two Y after
w. So all comparisons of these counts are equal, with *any* outermost numbers. Lengths grow by a
factor in the order

    blocks of b from the first to the last, then blocks of a from the last to the first

That there is such a w for every k and B is an argument, not a proof that was checked. What is
checked is the pair of each k and B that is asked for: the classes of all positions of both strings
are computed, exactly, and compared. A program has finitely many numbers, so that pairs for every B
would exclude all programs of depth k − 3.

Choices, minima and maxima count as the cases that they stand for. Programs that count both sides,
have guards or read positions are not among these. Nothing is said of transformers that are not
C-RASP programs, nor of how often a program of depth k − 3 errs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pandas as pd

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from prooflens.crasp import block_symbol, evaluate, prediction_program
from prooflens.errors import Problems

Runs = list[tuple[int, int]]
"""A string as runs of positions of the same class: (class, number of positions)."""

__all__ = ["block_lengths", "check", "run", "same_ends", "swapped_pair"]


_MOST = 10_000_000  # symbols, which are held in memory


def check(setting: Setting) -> None:
    """Refuse invalid cases.

    Raises:
        ArgumentError: for ``cases`` with fewer than four blocks, other numbers below 1, or too many
            symbols.
    """
    problems, given = Problems("claims run"), setting.options["cases"]
    good = all(len(one) == 4 and one[0] >= 4 and min(one[1:]) >= 1 for one in given)
    rule = "must list k from 4 on, the largest number, the shortest block, and the factor"
    problems.need(good, "--option cases", rule, given, "write [[6, 1, 8, 2]]")
    problems.raise_if_any()
    symbols = max(sum(block_lengths(k - 3, *sizes)) for k, _, *sizes in given)
    rule = f"must make strings of at most {_MOST} symbols"
    problems.need(symbols <= _MOST, "--option cases", rule, symbols, "shorten blocks")
    problems.raise_if_any()


def run(setting: Setting) -> Verdict:
    """Compare the pairs of several languages (ledger: ``depth-swapped-pairs``).

    Options: ``cases``, lists of k, the largest number B, the length of the shortest block of w and
    the factor by which blocks grow.
    """
    rows = []
    for k, bound, shortest, factor in setting.options["cases"]:
        before, begun = swapped_pair(k, shortest, factor)
        rows.append(
            {
                "language": f"L_{k}",
                "numbers": f"inner numbers up to {bound}",
                "k": k,
                "bound": bound,
                "symbols": len(before),
                "alike": same_ends(before, begun, k - 3, bound),
                "told": _prediction(k, before) != _prediction(k, begun),
            }
        )
    table = pd.DataFrame(rows)
    held = table[table["alike"] & table["told"]]
    named = [f"{r['language']}, {r['numbers']} ({r['symbols']} symbols)" for r in rows]
    words = (
        f"{len(held)} of {len(table)} pairs are the same to every program of depth k − 3 with "
        "inner numbers up to a bound and any outermost ones, and are told apart by the program of "
        f"depth k − 2: {'; '.join(named[n] for n in held.index)}."
    )
    figure = strips(
        table.assign(powers=np.log10(table["symbols"])),
        group="language",
        y="powers",
        by="numbers",
        label="symbols of the pair, log10",
    )
    seen = "How long the pair of each language is, by the largest number of inner comparisons."
    most = held.groupby("k")["bound"].max()
    told = [f"L_{k} up to {n}" for k, n in zip(most.index.tolist(), most.tolist(), strict=True)]
    return Verdict(
        decide(len(held) == len(table), bool((held["k"] >= 6).any())),
        words,
        "excluded at depth k − 3: " + ", ".join(told),
        {"pairs": table.to_dict("records")},
        {"pairs": table},
        {"pairs": Drawing(figure, seen)},
    )


def block_lengths(blocks: int, shortest: int, factor: int) -> list[int]:
    """Return the lengths of the blocks of w, the first block first.

    Args:
        blocks: The number d of blocks of w.
        shortest: The length of the shortest one.
        factor: The factor by which each length exceeds the next shorter one.
    """
    order = [*range(1, blocks, 2), *reversed(range(0, blocks, 2))]
    found = [0] * blocks
    for place, block in enumerate(order):
        found[block] = shortest * factor**place
    return found


def swapped_pair(k: int, shortest: int, factor: int) -> tuple[str, str]:
    """Two prefixes of strings of L_k, with k − 2 and with k blocks, that differ in the order of two
    symbols.

    Args:
        k: The number of blocks of the language, at least 4.
        shortest: The length of the shortest block before these symbols.
        factor: By what factor the lengths of blocks grow.
    """
    lengths = block_lengths(k - 3, shortest, factor)
    word = "".join(block_symbol(n + 1) * length for n, length in enumerate(lengths))
    last, other = block_symbol(k - 3), block_symbol(k - 2)
    return word + last + other + other, word + other + last + other


def same_ends(before: str, begun: str, levels: int, bound: int) -> bool:
    """Return whether no formula distinguishes the ends of two strings.

    Args:
        before, begun: Strings of the letters ``a`` and ``b``.
        levels: The depth of the formulas.
        bound: The largest number in the comparisons below the outermost ones. The numbers of the
            outermost ones are not bounded.
    """
    texts = [
        [(int(letter == "b"), len(list(run))) for letter, run in groupby(text)]
        for text in (before, begun)
    ]
    for _ in range(levels - 1):
        texts = _refine_classes(texts, bound)
    totals = [Counter[int]() for _ in texts]
    for total, runs in zip(totals, texts, strict=True):
        for one, length in runs:
            total[one] += length
    return texts[0][-1][0] == texts[1][-1][0] and totals[0] == totals[1]


class _Classes:
    """The classes of one level that were found so far, with their numbers.

    Args:
        bound: The largest number of a comparison.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.size = bound, 0
        self._same: dict[tuple[int, bytes], int] = {}  # what both strings begin with
        self._near: dict[tuple[int, bytes], list[tuple[int, np.ndarray]]] = {}

    def number(self, previous: int, counts: np.ndarray, passed: set[int]) -> int:
        """Return the number of a position's class. It is a new one if the position can be told from
        all classes.

        Args:
            previous: Its class at the level before.
            counts: For each class of that level, the number of positions so far that have it.
            passed: Classes that it cannot have.
        """
        exact = (previous, counts.tobytes())
        if exact not in self._same:
            near = self._near.setdefault((previous, _simple(counts, self.bound).tobytes()), [])
            others = (one for one in near if one[0] not in passed)
            alike = (n for n, there in others if not _is_separable(there, counts, self.bound))
            found = next(alike, self.size)
            if found == self.size:
                near.append((found, counts))
                self.size += 1
            self._same[exact] = found
        return self._same[exact]


def _refine_classes(texts: Sequence[Runs], bound: int) -> list[Runs]:
    """Return the classes of the next level for all positions of several strings."""
    size = 1 + max(one for runs in texts for one, _ in runs)
    classes, found = _Classes(bound), []
    for runs in texts:
        counts, now = np.zeros(size, dtype=np.int64), []
        for previous, length in runs:
            step, left, passed = np.zeros(size, dtype=np.int64), length, set[int]()
            step[previous] = 1
            while left:
                of = classes.number(previous, counts + step, passed)
                passed.add(of)  # of one run classes follow each other and do not come back
                taken = _as_far_as_alike(counts + step, step, left, bound)
                counts, left = counts + taken * step, left - taken
                now.append((of, taken))
        found.append(now)
    return found


def _as_far_as_alike(first: np.ndarray, step: np.ndarray, most: int, bound: int) -> int:
    """Return how many positions of a run have the class of the run's first position.

    One count grows from position to position, so that sums grow evenly. Once a position can be told
    from the first, all later ones can be.
    """
    low, high = 1, 2
    while high <= most and not _is_separable(first, first + (high - 1) * step, bound):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_separable(first, first + (middle - 1) * step, bound):
            high = middle
        else:
            low = middle
    return low


def _is_separable(one: np.ndarray, other: np.ndarray, bound: int) -> bool:
    """Return whether some e and v, of numbers up to the bound, satisfy e·one ≥ v > e·other or the
    reverse.

    Sums are built up count by count, the largest first. Counts that are equal in both are merged
    into one with all their factors. A sum is dropped when the remaining counts cannot bring it to a
    v between the two.
    """
    if (one == other).all():
        return False
    pairs, times = np.unique(np.stack([one, other]), axis=1, return_counts=True)
    if (_simple(pairs[0], bound) != _simple(pairs[1], bound)).any():
        return True
    most = np.argsort(-pairs.max(0), kind="stable")
    pairs, factors = pairs[:, most], bound * times[most]
    weight = factors * np.stack([*pairs, np.abs(pairs[0] - pairs[1])])
    rest = weight.sum(1, keepdims=True) - weight.cumsum(1)
    sums = np.zeros((1, 2), dtype=np.int64)
    for place, pair in enumerate(pairs.T):
        by = np.arange(-factors[place], factors[place] + 1)[:, None]
        sums = (sums[:, None] + by * pair).reshape(-1, 2)
        above, below = sums.T  # e and −e are both tried, so above > below is the one case
        near = above + rest[0, place] >= -bound
        near &= below - rest[1, place] <= bound
        near &= above - below + rest[2, place] > 0
        sums = np.unique(sums[near], axis=0)
    return bool(len(sums))


def _simple(counts: np.ndarray, bound: int) -> np.ndarray:
    """Return the outcomes of comparisons of single counts, and of differences of two counts."""
    sums = np.concatenate([counts, (counts[:, None] - counts).ravel()])
    return sums.clip(-bound - 1, bound).astype(np.int16)


def _prediction(k: int, word: str) -> bool:
    return bool(evaluate(prediction_program(k), [word]).values["last"][0, -1])
