"""Programs for languages whose depth is known.

    L_k      k alternating non-empty blocks that start with a: a⁺, a⁺b⁺, a⁺b⁺a⁺ …   depth k
    D_k      L_{2k−1}, with counts of the past and of the future                      depth k
    J_w      strings with w as a subsequence (piecewise testable)                     runs of w
    others   Dyck-1 (2), aⁿbⁿcⁿ (2), majority (1)

The *prediction problem* of L_k asks, at every position of a string that is known to be in L_k,
whether the last block has begun, which is whether the string read so far is in L_k: depth k − 2
(`depth` §3.2, §3.3). These programs prove upper bounds on the depth. That no shallower program
exists is the paper's theorem, not something a program can show.
"""

from __future__ import annotations

from itertools import groupby

from interp.errors import need
from interp.program.parser import parse_program
from interp.program.syntax import Program


def block_symbol(block: int) -> str:
    """Return the letter of block 1, 2, 3 …: a, b, a …"""
    return "a" if block % 2 else "b"


def block_word(k: int, *, first: str = "a") -> str:
    """Return a word of k alternating letters."""
    return "".join(block_symbol(block + (first == "b")) for block in range(1, k + 1))


def prediction_program(k: int) -> Program:
    """Return the program of L_k's prediction problem, which has depth k − 2.

        E_1 = true,   E_j = (# (s_j && E_{j−1})) >= 1,   answer = s_k && E_{k−1}

    with s_j the letter of block j. On a string of L_k, E_j holds at i exactly when block j has
    begun by then. By induction: E_1 does, since block 1 begins at the first position. If E_j holds
    at i, some position p ≤ i has the letter s_j and lies in block j − 1 or later; blocks of the
    letter s_j have j's parity, so p lies in block j or later. Conversely block j's first position
    has the letter s_j and lies after block j − 1 began. Finally, a position where block k − 1 has
    begun lies in block k − 1 or k, and the letter tells which. So only the k − 2 blocks between the
    first and the last need counts.

    Lines are ``E1`` … ``E{k−1}`` and ``last``.

    Raises:
        ArgumentError: if k is below 2, so that no block comes after the first.
    """
    _check_k("prediction_program", k, 2)
    counted = [f'E{j} = # ("{block_symbol(j)}" && E{j - 1}) >= 1' for j in range(2, k)]
    return _program("E1 = true", *counted, f'last = "{block_symbol(k)}" && E{k - 1}')


def membership_program(k: int) -> Program:
    """Return the program that decides membership in L_k, of depth k.

    L_k = J_{abab…} minus J_{baba…}, both words of k letters. A string of m blocks that starts with
    a contains the first word if m ≥ k and the second if m ≥ k + 1; one that starts with b contains
    them if m ≥ k + 1 and m ≥ k. So exactly the strings with m = k that start with a are left.

    Lines are ``A1`` … ``Ak`` (the first word), ``B1`` … ``Bk`` (the second) and ``member``.

    Raises:
        ArgumentError: if k is below 1.
    """
    _check_k("membership_program", k, 1)
    wanted, excess = (
        _runs_in_order("A", block_word(k)),
        _runs_in_order("B", block_word(k, first="b")),
    )
    return _program(*wanted, *excess, f"member = A{k} && !B{k}")


def two_sided_program(k: int) -> Program:
    """Return the program of D_k = L_{2k−1}, of depth k, which counts on both sides of a middle
    letter.

    A word w of 2k − 1 alternating letters is a subsequence exactly if some position has w's middle
    letter, the k − 1 letters before it as a subsequence up to there and the k − 1 after it from
    there on. Neighbouring letters differ, so it does not matter that counts include the position
    itself. Each side nests k − 1 counts and the middle one more. The rest is as in
    :func:`membership_program`.

    The last line decides the language at the last position only.

    Raises:
        ArgumentError: if k is below 1.
    """
    _check_k("two_sided_program", k, 1)
    lines = []
    for name, word in (("A", block_word(2 * k - 1)), ("B", block_word(2 * k - 1, first="b"))):
        before = after = ""
        for step in range(1, k):
            lines.append(f'{name}{step} = # ("{word[step - 1]}"{before}) >= 1')
            lines.append(f'{name}{2 * k - step} = #> ("{word[-step]}"{after}) >= 1')
            before, after = f" && {name}{step}", f" && {name}{2 * k - step}"
        lines.append(f'{name}{k} = # ("{word[k - 1]}"{before}{after}) >= 1')
    return _program(*lines, f"member = A{k} && !B{k}")


def subsequence_program(word: str) -> Program:
    """Return the program of J_w: strings that contain the word's letters in order, perhaps with
    others between.

    A run c^r of equal letters is found after the letters before it if r positions with c lie there:
    E_j = (# (c && E_{j−1})) >= r. Counting the letters one by one would be wrong: a count includes
    the position itself, so two equal neighbours could match the same position (`depth` §3.2). So
    the depth is the number of runs. Lines are ``E1`` …, one per run.

    Raises:
        ArgumentError: if the word is empty.
    """
    need("subsequence_program", len(word) > 0, "word", "must have a letter", word, "e.g. aba")
    return _program(*_runs_in_order("E", word))


def dyck_program() -> Program:
    """Return the program for balanced brackets, of depth 2: never more closed than open, equal at
    the end."""
    return _program(
        'open = # "("',
        'close = # ")"',
        "below = # (open < close)",
        "balanced = below == 0 && open == close",
    )


def equal_blocks_program() -> Program:
    """Return the program of aⁿbⁿcⁿ (n ≥ 1), of depth 2: letters in order, and equally many of
    each."""
    return _program(
        *(f'{letter}s = # "{letter}"' for letter in "abc"),
        'late_a = # ("a" && bs + cs >= 1)',
        'late_b = # ("b" && cs >= 1)',
        "ordered = late_a == 0 && late_b == 0",
        "member = ordered && as == bs && bs == cs && as >= 1",
    )


def majority_program() -> Program:
    """Return the program for strings with more a than b, of depth 1."""
    return _program('as = # "a"', 'bs = # "b"', "member = as > bs")


def _program(*lines: str) -> Program:
    return parse_program("\n".join(lines))


def _runs_in_order(prefix: str, word: str) -> list[str]:
    """Return a line per run of equal letters of the word: whether its letters so far were read in
    order."""
    lines, before = [], ""
    for number, (letter, run) in enumerate(groupby(word), start=1):
        lines.append(f'{prefix}{number} = # ("{letter}"{before}) >= {len(list(run))}')
        before = f" && {prefix}{number}"
    return lines


def _check_k(subject: str, k: int, least: int) -> None:
    advice = "L_1 has no second block to predict" if least == 2 else "a block or more"
    need(subject, k >= least, "k", f"must be at least {least}", k, advice)
