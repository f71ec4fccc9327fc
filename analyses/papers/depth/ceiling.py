"""The best that a shallower predictor of L_k can reach, so that failing means something.

Depth 1, exactly. After one layer of attention without positions, what is known at a position is its
letter and the counts (#a, #b) of the prefix, so a depth-1 predictor is a table. Position t of a
string of length n lies in block j with the prefix counts (a, b) in

    C(a − 1, ⌈j/2⌉ − 1) · C(b − 1, ⌊j/2⌋ − 1) · C(n − t, k − j)

of the C(n − 1, k − 1) strings (ways to cut the a's, the b's, and the rest). The best table says at
each cell what is true of more strings. No table gets more than 1 − max_t error_t of the strings of
length n entirely right, error_t being the best table's share of strings it misses at position t: a
bound that need not be reached.

Above depth 1, by search among programs of depth k − 3: one linear comparison in place of the two
lowest counts, thresholds free. What was not found may still exist.
"""

from __future__ import annotations

from math import comb

import numpy as np
import pandas as pd

from prooflens.crasp import (
    Program,
    block_symbol,
    depth,
    evaluate_codes,
    parse_program,
    program_text,
)
from prooflens.tasks import language

__all__ = ["best_table", "describe", "search_program", "table_bound"]

_LETTERS = ("a", "b")


def best_table(k: int, length: int) -> dict[int, float]:
    """Position t = 1 … length → share of strings that the best table misses there."""
    total = comb(length - 1, k - 1)
    return {t: _count_rarer(k, length, t) / total for t in range(1, length + 1)}


def table_bound(k: int, lengths: tuple[int, int]) -> tuple[float, float]:
    """The best a depth-1 predictor can do on lengths drawn evenly from a range.

    Returns:
        Share of positions right (reached by the best table of each length), and a bound on the
        share of strings that are right throughout.
    """
    positions, wrong, bounds = 0, 0.0, []
    for length in range(max(lengths[0], k), lengths[1] + 1):
        missed = best_table(k, length)
        positions += length
        wrong += sum(missed.values())
        bounds.append(1 - max(missed.values()))
    return 1 - wrong / positions, float(np.mean(bounds))


def _count_rarer(k: int, length: int, t: int) -> int:
    """How many strings have the rarer label at t among those with the same letter and counts."""
    missed = 0
    for a in range(1, t + 1):
        b = t - a
        for parity in (0, 1):
            ways = [0, 0]
            for block in range(1, k + 1):
                if block % 2 == parity:
                    number = _prefixes(block, a, b) * comb(length - t, k - block)
                    ways[block == k] += number
            missed += min(ways)
    return missed


def _prefixes(block: int, a: int, b: int) -> int:
    """How many prefixes end in this block with these counts."""
    blocks_a, blocks_b = (block + 1) // 2, block // 2
    if blocks_b == 0:
        return int(b == 0)
    return comb(a - 1, blocks_a - 1) * comb(b - 1, blocks_b - 1) if b else 0


def search_program(
    k: int, lengths: tuple[int, int], *, budget: int, rows: int, seed: int
) -> tuple[Program, float, pd.DataFrame]:
    """Search for the best program of depth k − 3 for L_k.

    Half of the budget is random, half changes one number of the best so far. Candidates are judged
    on one set of strings and the winner on another.

    Args:
        k: The number of blocks, at least 4.
        lengths: The range of lengths of the strings.
        budget: How many programs are tried.
        rows: How many strings each set has.
        seed: Seed of the strings and the programs.

    Returns:
        The program, its whole-string match on fresh strings, and the best so far after each try.
    """
    generator = np.random.default_rng(seed)
    spoken = language(f"L_{k}")
    sets = []
    for _ in range(2):
        drawn = generator.integers(max(lengths[0], k), lengths[1] + 1, rows)
        codes = spoken.draw(drawn, generator)
        truth = evaluate_codes(spoken.prediction, codes, _LETTERS, drawn).values["last"]
        sets.append((codes, drawn, truth))
    best, score, trace = _random(k, generator), -1.0, []
    for tried in range(budget):
        fresh = tried < budget // 2
        numbers = _random(k, generator) if fresh else _change_one(best, generator)
        found = _match(_program(k, numbers), *sets[0])
        if found >= score:
            best, score = numbers, found
        trace.append({"k": k, "tried": tried + 1, "best": score})
    program = _program(k, best)
    return program, _match(program, *sets[1]), pd.DataFrame(trace)


def describe(program: Program) -> str:
    """The program on one line, with its depth."""
    return f"depth {depth(program)}: " + "; ".join(program_text(program).split("\n")).strip("; ")


def _random(k: int, generator: np.random.Generator) -> list[int]:
    """α, β, γ of the comparison α #a + β #b ≥ γ, then a threshold for each count above it."""
    ends = generator.integers(-3, 4, 2).tolist()
    return [*ends, int(generator.integers(-20, 41)), *generator.integers(1, 6, k - 4).tolist()]


def _change_one(numbers: list[int], generator: np.random.Generator) -> list[int]:
    place = int(generator.integers(len(numbers)))
    step = int(generator.choice([-5, -2, -1, 1, 2, 5]))
    changed = list(numbers)
    changed[place] = max(1, changed[place] + step) if place > 2 else changed[place] + step
    return changed


def _program(k: int, numbers: list[int]) -> Program:
    """Depth k − 3: block 3 has begun when the comparison holds; then a count a block."""
    alpha, beta, gamma, *thresholds = numbers
    lines = [f'E3 = {alpha} * # "a" + {beta} * # "b" >= {gamma}']
    for block, least in zip(range(4, k), thresholds, strict=True):
        lines.append(f'E{block} = # ("{block_symbol(block)}" && E{block - 1}) >= {least}')
    return parse_program("\n".join([*lines, f'last = "{block_symbol(k)}" && E{k - 1}']))


def _match(program: Program, codes: np.ndarray, lengths: np.ndarray, truth: np.ndarray) -> float:
    said = evaluate_codes(program, codes, _LETTERS, lengths).values["last"]
    return float((said == truth).all(axis=1).mean())
