"""Max-of-K by three paths: proofs for a one-layer, one-head, attention-only model.

By :mod:`interp.bounds.three_paths` a row is answered rightly if, for every wrong token c, a sum
over positions of functions f_p of one token each is positive. The sets of positions at which the
maximum occurs are enumerated; the other tokens are all below some cap, and each is replaced by the
token that makes its own term smallest:

    worst k < cap of f_p, as the smaller of the exact term at k = c and, for k ≠ c,
    e_p(k) [min_c (D_q(m) − D_q(c)) + min_{c ≠ k} (O_p(k, m) − O_p(k, c))]:
    O copies (row k favours column k), the rest of a row is noise. v³ terms

The multiplications of the three tables (v² d, where d is the width) and of the terms are counted.

The largest cap with a proof is found for every query, maximum and set of positions. The bound is
the share of rows below their caps; every one of them is answered rightly. Brute force takes each
row by itself.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import share
from interp.bounds.three_paths import LEAST, Tables
from interp.bounds.two_layers import Watch
from probes.certify.cover import Proof
from probes.certify.lemmas import Lemma, of_three_paths

Array = Float64[np.ndarray, "..."]


def subsets(length: int) -> list[tuple[int, ...]]:
    """Return every subset, the empty one included, of the positions before the last.

    A subset holds the positions before the last at which the maximum occurs.
    """
    before = range(length - 1)
    return [s for n in range(length) for s in combinations(before, n)]


def brute_force(tables: Tables, watch: Watch = iter) -> Proof:
    """Prove the accuracy by enumerating all rows; ``parts`` has the exact share that is right in
    real arithmetic."""
    started, right, exact = time.perf_counter(), 0, 0
    v, k = tables.vocabulary, tables.length
    for q in watch(range(v)):
        sure, real = _one_query(tables, q)
        right, exact = right + sure, exact + real
    seconds = time.perf_counter() - started
    work = v**k * v + v * k * v * v + tables.work  # one a logit of each row, and the terms
    found = _proof("brute force", tables, right, v**k, work, seconds, ())
    return replace(found, parts={"right in real arithmetic": exact / v**k})


def _one_query(tables: Tables, q: int) -> tuple[int, int]:
    """Return how many rows with one query token are right under every evaluation, and in real
    arithmetic."""
    v, k = tables.vocabulary, tables.length
    terms = tables.e[q, :, :, None] * (tables.direct[q] + tables.ov)
    rest: Array = np.zeros((1, v))
    size: Array = np.zeros(1)
    top = np.zeros(1, dtype=np.int64)
    for p in range(1, k - 1):
        rest = (rest[:, None] + terms[p][None]).reshape(-1, v)
        size = (size[:, None] + tables.e[q, p][None]).reshape(-1)
        top = np.maximum(top[:, None], np.arange(v)[None]).reshape(-1)
    sure, real, rows = 0, 0, np.arange(len(rest))
    for first in range(v):
        logits = rest + (terms[-1, q] + terms[0, first])
        total = size + tables.e[q, 0, first] + tables.e[q, -1, q]
        answer = np.maximum(np.maximum(top, first), q)
        mine = logits[rows, answer]
        logits[rows, answer] = -np.inf
        ahead = mine - logits.max(1)
        sure += int((ahead > total * tables.slack + LEAST).sum())
        real += int((ahead > total * tables.real + LEAST).sum())
    return sure, real


@np.errstate(all="ignore")
def by_cubes(tables: Tables, watch: Watch = iter) -> Proof:
    """Prove the accuracy by the cubic proof: whole terms, for every wrong token.

    Args:
        tables: Attention scores and logits of the model, split by path.
        watch: A wrapper around the loop over query tokens, for a progress bar.
    """
    started = time.perf_counter()
    k = tables.length
    caps, work = _by_terms(tables, watch)
    others = np.array([k - 1 - len(copies) for copies in subsets(k)])
    right = sum(rows_below(caps[..., i], int(n)) for i, n in enumerate(others))
    seconds = time.perf_counter() - started
    cells, lemmas = int((caps >= 0).sum()), of_three_paths(tables)
    proof = _proof("cubic", tables, right, cells, work + tables.work, seconds, lemmas)
    return replace(proof, data={"cover": "caps", "caps": caps.tolist()})


def rows_below(caps: np.ndarray, others: int) -> int:
    """Return the number of rows that caps cover, as an exact integer (no overflow).

    Args:
        caps: Caps as in :func:`caps_of`, all for sets of positions of one size; −1 counts for none.
        others: Number of positions that are free: each holds any token smaller than the cap, so
            that a cap covers cap^others rows.
    """
    values, times = np.unique(caps[caps >= 0], return_counts=True)
    return sum(
        int(cap) ** others * int(n) for cap, n in zip(values.tolist(), times.tolist(), strict=True)
    )


def caps_of(proof: Proof) -> np.ndarray:
    """Return the caps that a proof holds, ``[query, maximum, set of positions]``.

    For a last token (the query), a maximum, and the set of positions at which the maximum stands,
    the cap is the number up to which the model was proved right: whatever tokens smaller than the
    cap stand at all other positions. −1 if nothing was proved.
    """
    return np.array(proof.data["caps"])


def _by_terms(tables: Tables, watch: Watch) -> tuple[np.ndarray, int]:
    """Return the caps ``[query, maximum, set of positions]``, and the number of multiplications."""
    v, k, work, wrong = tables.vocabulary, tables.length, 0, _best_wrong(tables.ov)
    caps = np.full((v, v, 2 ** (k - 1)), -1, dtype=np.int64)
    for q in watch(range(v)):
        for m in range(q, v):
            base, below = _terms(tables, wrong, q, m)
            work += base.size + 2 * (k - 1) * m
            for index, copies in enumerate(subsets(k)):
                if q == m or copies:
                    caps[q, m, index] = _cap(base, below, copies, m)
    return caps, work


def _cap(base: Array, below: Array, copies: tuple[int, ...], m: int) -> int:
    """Return the largest cap for which the margin is proved; −1 if there is none.

    Args:
        base: The terms of the maximum and, last, of the query, ``[position, c]``.
        below: The smallest terms of tokens below each cap, ``[position, cap − 1, c]``.
        copies: The positions at which the maximum occurs.
        m: The maximum.
    """
    others = [p for p in range(len(base) - 1) if p not in copies]
    fixed = base[-1] + base[list(copies)].sum(0)
    if not others:
        return 0 if bool((fixed > LEAST).all()) else -1
    proved = ((fixed + below[others].sum(0)) > LEAST).all(-1)
    return int(proved.argmin()) if not proved.all() else m if m else -1


def _terms(tables: Tables, wrong: Array, q: int, m: int) -> tuple[Array, Array]:
    """Return the terms of the pair (q, m), and the smallest terms below each cap, for all wrong
    tokens c."""
    others = np.delete(np.arange(tables.vocabulary), m)
    e, ov, direct = tables.e[q], tables.ov, tables.direct[q]
    ahead = direct[m] - direct[others] - tables.slack
    base = e[:, m, None] * (ahead + ov[:, m, m, None] - ov[:, m][:, others])
    base[-1] = e[-1, q] * (ahead + ov[-1, q, m] - ov[-1, q, others])
    low = np.arange(m)
    noise = ov[:-1, :m, m] - wrong[:-1, :m, m]
    rest = np.minimum.accumulate(e[:-1, :m] * (ahead.min() + noise), axis=1)
    copied = np.full((len(ov) - 1, m, len(others)), np.inf)
    own = e[:-1, low] * (
        direct[m] - direct[low] - tables.slack + ov[:-1, low, m] - ov[:-1, low, low]
    )
    copied[:, low, low] = own  # others' first m entries are the tokens below m
    copied = np.minimum.accumulate(copied, axis=1)
    return base, np.minimum(rest[..., None], copied)


def largest_others(table: Array) -> Array:
    """Return, for every entry, the largest other entry of its row (the last axis)."""
    order = np.sort(table, axis=-1)
    return np.where(table == order[..., -1:], order[..., -2:-1], order[..., -1:])


def _best_wrong(ov: Array) -> Array:
    """Return the largest O(k, c) over tokens c that are neither m nor k, ``[position, k, m]``."""
    v = ov.shape[-1]
    without = ov.copy()
    without[:, np.arange(v), np.arange(v)] = -np.inf
    return largest_others(without)


def _proof(
    name: str,
    tables: Tables,
    right: int,
    cells: int,
    work: int,
    seconds: float,
    lemmas: tuple[Lemma, ...],
) -> Proof:
    v, k = tables.vocabulary, tables.length
    bound, trivial = share(right, v**k), (v**k - (v - 1) ** k) / v**k
    reason = "" if bound > trivial else f"no better than always answering {v - 1} ({trivial:.4g})"
    found = Proof(name, "accuracy", bound, cells, work, seconds, tables.arithmetic, lemmas)
    return replace(found, vacuous=reason)
