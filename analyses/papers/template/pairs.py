"""All templates of one length, and tasks of two of them each (`template` §2.1)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from prooflens.tasks import TemplateTask

_GREEK = "αβγδεζ"


def every_template(length: int) -> tuple[str, ...]:
    """All templates of ``length`` characters that are wildcards alone, in canonical form.

    There are as many as there are partitions of the positions: 2, 5, 15, 52 for lengths 2 to 5.
    """
    found = [""]
    for _ in range(length):
        found = [z + c for z in found for c in _GREEK[: len(set(z)) + 1]]
    return tuple(found)


def random_pairs(
    count: int, length: int, *, seed: int = 0, **options: Any
) -> tuple[TemplateTask, ...]:
    """Different tasks of two random templates each, labelled +1 and −1.

    Every two of the length that are not equivalent are equally likely.

    Args:
        count: The number of tasks, at most that of the pairs.
        length: The number of characters of a template, at most six.
        seed: The seed of the draw.
        options: Those of :class:`~prooflens.tasks.TemplateTask`.
    """
    pairs = list(combinations(every_template(length), 2))
    drawn = np.random.default_rng([seed, length]).choice(len(pairs), count, replace=False)
    return tuple(
        TemplateTask(pairs[i], (1.0, -1.0), title="-".join(pairs[i]), **options) for i in drawn
    )
