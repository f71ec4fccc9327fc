"""Every question that prefix prediction of L_k asks, prefix by prefix (`depth` §3.3).

The answer to a prefix is that of the prefix alone, so a prefix stands for as many questions as
there are strings of the task that begin with it. Both numbers come from one recursion over (letters
read, blocks begun): a block goes on or the next one begins.

Not for other languages: what a prefix leads to is then a state of their automaton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.tasks.depth.batches import to_inputs
from interp.tasks.depth.languages import language
from interp.tasks.depth.prediction import PrefixPrediction

__all__ = ["letters_of", "prefixes"]

_Ids = Int[np.ndarray, "row one_more"]


def letters_of(task: PrefixPrediction) -> Int[np.ndarray, " 3"]:
    """Ids of BOS, a and b."""
    letters = language(task.language).letters
    return np.asarray(to_inputs(task.program, np.array([[0, 1]]), letters, 2)[0].numpy())


def prefixes(
    task: PrefixPrediction, longest: int, *, ordered: bool, most: int
) -> Iterator[tuple[_Ids, Int[np.ndarray, " row"], list[int]]]:
    """Of every length: ids of the prefixes, the right answers, and how many questions each is.

    Args:
        task: Of a language L_k.
        longest: Strings beyond this length are left out.
        ordered: Each prefix by itself; else one stands for all with as many letters of each kind,
            the same last letter and the same answer.
        most: Rows at a time.
    """
    k = int(task.language.removeprefix("L_"))
    lengths = {n for low, high in task.bins for n in range(low, high + 1) if n <= longest}

    @cache
    def endings(i: int, j: int) -> int:
        """Strings of the task that go on from i letters in j blocks."""
        if j > k or i > max(lengths):
            return 0
        return (i in lengths and j == k) + endings(i + 1, j) + endings(i + 1, j + 1)

    bos, *letters = letters_of(task).tolist()
    states = Counter[Any]({((0,) if ordered else (), 1, 1): 1})  # letters if kept, blocks, a's
    for i in range(1, max(lengths) + 1):
        rows, after = Counter[Any](), Counter[Any]()
        for (word, j, a), ways in states.items():
            last = 1 - j % 2
            text = word or (1,) * (i - a - last) + (0,) * (a - 1 + last) + (last,)
            rows[text, int(j == k)] += ways * endings(i, j)
            for block in range(j, min(j + 1, k) + 1):
                longer = (*word, 1 - block % 2) if word else ()
                after[longer, block, a + block % 2] += ways
        kept = iter([(text, answer, n) for (text, answer), n in rows.items() if n])
        while part := list(islice(kept, most)):
            ids = np.array([[bos, *(letters[c] for c in text)] for text, _, _ in part])
            yield ids, np.array([answer for _, answer, _ in part]), [n for _, _, n in part]
        states = after
