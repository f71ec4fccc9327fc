"""Programs for languages whose depth is known.

    L_k      k alternating non-empty blocks that start with a: a⁺, a⁺b⁺, a⁺b⁺a⁺ …   depth k
    D_k      L_{2k−1}, with counts of the past and of the future                      depth k
    J_w      strings with w as a subsequence (piecewise testable)                     runs of w
    others   Dyck-1 (2), aⁿbⁿcⁿ (2), majority (1)

The *prediction problem* of L_k asks, at every position of a string promised to be in L_k, whether
the last block has begun, which is whether the string read so far is in L_k: depth k − 2
(`depth` §3.2, §3.3). All of these are upper bounds: that no shallower program exists is the paper's
theorem, not something a program can show.
"""

from __future__ import annotations

from itertools import groupby

from interp.errors import Problems
from interp.program.dsl import Boolean, Lines, count, sym, true
from interp.program.syntax import Program


def block_symbol(block: int) -> str:
    """The letter of block 1, 2, 3 …: a, b, a …"""
    return "a" if block % 2 else "b"


def block_word(k: int, *, first: str = "a") -> str:
    """A word of k alternating letters."""
    return "".join(block_symbol(block + (first == "b")) for block in range(1, k + 1))


def prediction_program(k: int) -> Program:
    """The program of L_k's prediction problem, which has depth k − 2.

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
    _check_k("prediction_program", k, 2)
    lines = Lines()
    begun = lines.let("E1", true)
    for block in range(2, k):
        begun = lines.let(f"E{block}", count(sym(block_symbol(block)) & begun) >= 1)
    lines.let("last", sym(block_symbol(k)) & begun)
    return lines.program()


def membership_program(k: int) -> Program:
    """The program that decides membership in L_k, of depth k.

    L_k = J_{abab…} minus J_{baba…}, both words of k letters. A string of m blocks that starts with
    a holds the first word if m ≥ k and the second if m ≥ k + 1; one that starts with b, if
    m ≥ k + 1 and m ≥ k. So exactly m = k with a in front is left.

    Lines are ``A1`` … ``Ak`` (the first word), ``B1`` … ``Bk`` (the second) and ``member``.

    Raises:
        ArgumentError: for k below 1.
    """
    _check_k("membership_program", k, 1)
    lines = Lines()
    wanted = _seen(lines, "A", block_word(k))
    excess = _seen(lines, "B", block_word(k, first="b"))
    lines.let("member", wanted & ~excess)
    return lines.program()


def two_sided_program(k: int) -> Program:
    """The program of D_k = L_{2k−1}, of depth k, which counts on both sides of a middle letter.

    A word w of 2k − 1 alternating letters is a subsequence exactly if some position has w's middle
    letter, the k − 1 letters before it as a subsequence up to there and the k − 1 after it from
    there on. Neighbouring letters differ, so counts that include the position itself do no harm.
    Each side nests k − 1 counts and the middle one more. Then as in :func:`membership_program`.

    The last line means the language at the last position only.

    Raises:
        ArgumentError: for k below 1.
    """
    _check_k("two_sided_program", k, 1)
    lines = Lines()
    held: list[Boolean] = []
    for name, word in (("A", block_word(2 * k - 1)), ("B", block_word(2 * k - 1, first="b"))):
        before, after = true, true
        for step in range(1, k):
            past = count(sym(word[step - 1]) & before if step > 1 else sym(word[0]))
            before = lines.let(f"{name}{step}", past >= 1)
            letter = sym(word[-step])
            future = count(letter & after if step > 1 else letter, future=True)
            after = lines.let(f"{name}{2 * k - step}", future >= 1)
        middle = sym(word[k - 1]) & before & after if k > 1 else sym(word[0])
        held.append(lines.let(f"{name}{k}", count(middle) >= 1))
    lines.let("member", held[0] & ~held[1])
    return lines.program()


def subsequence_program(word: str) -> Program:
    """The program of J_w: strings that contain the word's letters in order, perhaps with others
    between.

    A run c^r of equal letters is found after what comes before it when r positions with c lie
    there: E_j = (# (c && E_{j−1})) >= r. Counting one by one would be wrong: a count that includes
    the position itself lets two equal neighbours match the same one (`depth` §3.2). So the depth
    is the number of runs. Lines are ``E1`` … one a run.

    Raises:
        ArgumentError: for an empty word.
    """
    problems = Problems("subsequence_program")
    problems.need(len(word) > 0, "word", "must have a letter", word, "e.g. aba")
    problems.raise_if_any()
    lines = Lines()
    _seen(lines, "E", word)
    return lines.program()


def dyck_program() -> Program:
    """The program for balanced brackets, of depth 2: never more closed than open, equal at the
    end."""
    lines = Lines()
    opened = lines.let("open", count(sym("(")))
    closed = lines.let("close", count(sym(")")))
    below = lines.let("below", count(opened < closed))
    lines.let("balanced", (below == 0) & (opened == closed))
    return lines.program()


def equal_blocks_program() -> Program:
    """The program of aⁿbⁿcⁿ (n ≥ 1), of depth 2: letters in order, and equally many of each."""
    lines = Lines()
    a, b, c = (lines.let(f"{letter}s", count(sym(letter))) for letter in "abc")
    late_a = lines.let("late_a", count(sym("a") & (b + c >= 1)))
    late_b = lines.let("late_b", count(sym("b") & (c >= 1)))
    ordered = lines.let("ordered", (late_a == 0) & (late_b == 0))
    lines.let("member", ordered & (a == b) & (b == c) & (a >= 1))
    return lines.program()


def majority_program() -> Program:
    """The program for strings with more a than b, of depth 1."""
    lines = Lines()
    a, b = (lines.let(f"{letter}s", count(sym(letter))) for letter in "ab")
    lines.let("member", a > b)
    return lines.program()


def _seen(lines: Lines, prefix: str, word: str) -> Boolean:
    """Add a line per run of equal letters of the word: whether its letters so far have been read in
    order."""
    seen = true
    for number, (letter, run) in enumerate(groupby(word), start=1):
        here = sym(letter) & seen if number > 1 else sym(letter)
        seen = lines.let(f"{prefix}{number}", count(here) >= len(list(run)))
    return seen


def _check_k(subject: str, k: int, least: int) -> None:
    problems = Problems(subject)
    advice = "L_1 has no second block to predict" if least == 2 else "a block or more"
    problems.need(k >= least, "k", f"must be at least {least}", k, advice)
    problems.raise_if_any()
