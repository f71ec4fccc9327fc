"""Programs of the languages whose depth is known.

L_k is the language of k alternating non-empty blocks that starts with a: a⁺, a⁺b⁺, a⁺b⁺a⁺ …
(`depth` §3.2). Its *prediction problem* asks, at every position of a string promised to be in L_k,
whether the last block has begun. These are upper bounds: that no shallower program exists is the
paper's theorem, not something a program can show.
"""

from __future__ import annotations

from interp.crasp.dsl import Lines, count, sym, true
from interp.crasp.syntax import Program
from interp.errors import Problems

__all__ = ["block_symbol", "prediction_program"]


def block_symbol(block: int) -> str:
    """The letter of block 1, 2, 3 …: a, b, a …"""
    return "a" if block % 2 else "b"


def prediction_program(k: int) -> Program:
    """The program of L_k's prediction problem, of depth k − 2.

        E_1 = true,   E_j = (# (s_j && E_{j−1})) >= 1,   answer = s_k && E_{k−1}

    with s_j the letter of block j. On a string of L_k, E_j holds at i exactly when block j has
    begun by then. By induction: E_1 does, since block 1 begins at the first position. If E_j holds
    at i, some position p ≤ i has the letter s_j and lies in block j − 1 or later; blocks of the
    letter s_j have j's parity, so p lies in block j or later. Conversely block j's first position
    has the letter s_j and lies after block j − 1 began. At last, a position where block k − 1 has
    begun lies in block k − 1 or k, and the letter tells which: the first block is given and the
    last is read off, so only the k − 2 blocks between are counted.

    Lines are ``E1`` … ``E{k−1}`` and ``last``.

    Raises:
        ArgumentError: for k below 2, where there is no block to wait for.
    """
    problems = Problems("prediction_program")
    problems.need(k >= 2, "k", "must be at least 2", k, "L_1 has no second block to predict")
    problems.raise_if_any()
    lines = Lines()
    begun = lines.let("E1", true)
    for block in range(2, k):
        begun = lines.let(f"E{block}", count(sym(block_symbol(block)) & begun) >= 1)
    lines.let("last", sym(block_symbol(k)) & begun)
    return lines.program()
