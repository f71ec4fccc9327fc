"""Which tokens a head looks at from which: a table on (token here, earlier token), read off its own
pattern.

    weight(q, k) = mean, over positions with these tokens, of attention × number visible
    looked at    = weight(q, k) ≥ ½ max_k weight(q, k)

Where each token looks at one other, the table is a line, ``partner = table(token) …``, and the
condition ``key.token == partner``; where all look at the same ones it is ``key.token in …``; else a
case for each set. A first token that all rows share is left out where others are looked at: heads
rest there when there is nothing to see. For small vocabularies, and for a head that knows tokens
alone; whether it does so is judged as of every primitive, by putting the pattern in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Float

from interp.interventions.components import Component
from interp.rasp.evaluation import NONE
from interp.rasp.syntax import (
    And,
    Assignment,
    Compare,
    Expression,
    In,
    Key,
    Literal_,
    Name,
    Nothing,
    Or,
    Table,
    Token,
)
from interp.run import Site
from probes.decompile.decisions import activations
from probes.decompile.primitives import Primitive
from probes.decompile.rows import Rows

__all__ = ["by_pairs"]

_MOST, _SETS, _NEAR = 12, 3, 0.5


def by_pairs(model: Any, rows: Rows, head: Component, *, positions: bool) -> Iterator[Primitive]:
    """The table of a head's pattern, as what counts such tokens and as what picks the last one;
    nothing for large vocabularies and where a simpler primitive says the same.

    Args:
        model: Hooked.
        rows: Some of what it is asked.
        head: In which layer, and which.
        positions: Whether the model knows positions.
    """
    codes = np.unique(rows.tokens[rows.read])
    if not 2 <= len(codes) <= _MOST:
        return
    site = Site(head.layer, "pattern", head.head)
    own = activations(model, rows, [site])[site].float().numpy()
    looked = _looked_at(_weights(own, rows, codes), rows, codes)
    texts = [rows.vocabulary.texts[code] for code in codes]
    told = {texts[q]: tuple(texts[k] for k in keys) for q, keys in looked.items()}
    found = _condition(told, f"partner_{head.name.lower()}")
    if found is None:
        return
    where, lines = found
    words = f"{head.name} table of tokens"
    yield Primitive(words, where, None, 5, lines)
    if positions:
        yield Primitive(f"the last of the {words}", where, "last", 6, lines)


def _weights(
    pattern: Float[np.ndarray, "row query key"], rows: Rows, codes: np.ndarray
) -> Float[np.ndarray, "token token"]:
    """How much more than evenly each token is looked at from each; 0 for pairs that never meet."""
    place = np.searchsorted(codes, np.where(rows.read, rows.tokens, codes[0]))
    n = rows.tokens.shape[1]
    seen = np.tril(np.ones((n, n), dtype=bool)) & rows.read[:, :, None] & rows.read[:, None, :]
    pairs = (place[:, :, None] * len(codes) + place[:, None, :])[seen]
    relative = (pattern * np.arange(1, n + 1)[None, :, None])[seen]
    size = len(codes) ** 2
    total, times = np.bincount(pairs, relative, size), np.bincount(pairs, minlength=size)
    return np.asarray((total / np.maximum(times, 1)).reshape(len(codes), len(codes)))


def _looked_at(
    weights: Float[np.ndarray, "token token"], rows: Rows, codes: np.ndarray
) -> dict[int, list[int]]:
    """Place of a token → places of those that it looks at."""
    first = np.unique(rows.tokens[:, 0][rows.tokens[:, 0] != NONE])
    rest = int(np.searchsorted(codes, first[0])) if len(first) == 1 else -1
    found = {}
    for q, row in enumerate(weights):
        if q == rest or not row.any():
            continue
        keys = np.flatnonzero(row >= _NEAR * row.max()).tolist()
        others = np.delete(np.arange(len(row)), rest) if rest >= 0 else np.arange(len(row))
        if rest in keys and row[others].max() >= 1:
            keys = others[row[others] >= _NEAR * row[others].max()].tolist()
        found[q] = keys
    return found


def _condition(
    looked: dict[str, tuple[str, ...]], name: str
) -> tuple[Expression, tuple[Assignment, ...]] | None:
    """A condition that says so, and the lines it needs: one of that name, if any."""
    sets = sorted(set(looked.values()))
    same = all(keys == (token,) for token, keys in looked.items())
    everything = len(sets) == 1 and (len(sets[0]) == 1 or set(sets[0]) >= set(looked))
    if not sets or same or everything:
        return None
    if len(sets) == 1:
        return _among(Key("token"), sets[0]), ()
    if all(len(keys) == 1 for keys in sets):
        entries = tuple(((token,), Literal_(keys[0])) for token, keys in looked.items())
        line = Assignment(name, Table((Token(),), entries, Nothing()))
        return Compare("==", Key("token"), Name(name)), (line,)
    if len(sets) > _SETS:
        return None
    cases: list[Expression] = [
        And(
            _among(Token(), tuple(t for t, own in looked.items() if own == keys)),
            _among(Key("token"), keys),
        )
        for keys in sets
    ]
    return reduce(Or, cases), ()


def _among(value: Expression, tokens: tuple[str, ...]) -> Expression:
    return Compare("==", value, Literal_(tokens[0])) if len(tokens) == 1 else In(value, tokens)
