"""Tokens that open and tokens that close: where every row comes back to as many of both.

    depth  = count(key.token in {"(", "["}) - count(key.token in {")", "]"})
    opened = last(key.token where key.depth == depth && key.token in {"(", "["})

Which tokens open is not given: of all ways to part the tokens that vary in two, that one is taken
for which no row ever has more of the second kind than of the first, and ends with as many.
``opened`` is then the innermost one that is still open, which takes two layers: one that counts and
one that compares the counts.

Not for rows that stop in the middle: there nothing comes back.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from interp.rasp.syntax import (
    And,
    Arithmetic,
    Assignment,
    Compare,
    Count,
    In,
    Key,
    Name,
    Pick,
)
from probes.decompile.rows import Rows

__all__ = ["balanced"]

_FEWEST, _MOST = 3, 8


def balanced(rows: Rows) -> tuple[Assignment, Assignment] | None:
    """The lines ``depth`` and ``opened``; None where no two kinds of tokens balance.

    Of two tokens the difference of their counts says as much without a line of its own.
    """
    content = rows.content()
    if not _FEWEST <= len(content) <= _MOST:
        return None
    each = rows.tokens[..., None] == content
    for signs in product((1, -1), repeat=len(content)):
        height = (each * np.array(signs)).sum(-1).cumsum(1)
        if -1 in signs and height.min() >= 0 and height.max() > 0 and not height[:, -1].any():
            texts = [rows.vocabulary.texts[code] for code in content.tolist()]
            opening, closing = (
                In(Key("token"), tuple(t for t, s in zip(texts, signs, strict=True) if s == sign))
                for sign in (1, -1)
            )
            depth = Assignment("depth", Arithmetic("-", Count(opening), Count(closing)))
            same = Compare("==", Key("depth"), Name("depth"))
            return depth, Assignment("opened", Pick("last", Key("token"), And(same, opening)))
    return None
