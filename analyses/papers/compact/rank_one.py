"""Proofs of Max-of-K that take the two factors of a term apart: quadratic, and rank one.

Both cover rows as :func:`prooflens.certificates.by_cubes` does and are cheaper and weaker:

    quadratic   the largest e_p(k) below the cap, times the worst O-row below the cap, for the worst
                c of each part on its own. v² terms
    rank one    as quadratic, but s_q(k, p) is a product of a function of q and one of k (the size
                direction), and the remainder is paid for by its largest difference within a row,
                bounded by lengths of vectors: no query meets a key, so v d in place of v² d
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from prooflens.certificates import (
    LEAST,
    UP,
    Arithmetic,
    Tables,
    add,
    largest_others,
    queries_and_keys,
    rows_below,
    share,
    subsets,
)

__all__ = ["Weights", "by_factors", "exact_weights", "rank_one_weights"]

Array = Float64[np.ndarray, "..."]

_RAISED, _FLOOR = 270.0, 2.0**-400
"""Of the logarithm of a factor; what stands for raised weights that may have underflowed."""


@dataclass(frozen=True)
class Weights:
    """What is known of e^{s_q(k, p)}.

    Attributes:
        good: What a weight is at least where it does good, ``[query token, position, token]``.
        bad: What it is at most, beside ``good``, where it does harm.
        work: Multiplications that made them and the other two paths.
    """

    good: Array
    bad: Array
    work: int


def exact_weights(tables: Tables) -> Weights:
    """The weights of the table of scores: the quadratic proof's."""
    return Weights(tables.e, tables.e, tables.work)


def rank_one_weights(model: Any, tables: Tables) -> Weights | None:
    """Weights without the table of scores: what a product of two numbers says of them.

    For any vectors a and b with c = ⟨a, b⟩ ≠ 0,

        ⟨q, k⟩ = ⟨q, a⟩⟨b, k⟩/c + ⟨q′, k′⟩,    q′ = q − ⟨q, a⟩b/c,    k′ = k − ⟨k, b⟩a/c

    ``good`` is that of the first term alone, with a and b along the largest singular vectors. The
    second changes a ratio of weights in row q by at most e^{ω_q}, ω_q = 2 |q′| max|k′ − mean|.
    None where the two directions are at right angles.
    """
    ar, v, length = Arithmetic("real"), tables.vocabulary, tables.length
    queries, k_token, k_place = queries_and_keys(model, length, ar)
    both = add(k_place.reshape(length, 1, -1), k_token.reshape(1, v, -1), ar)
    q, k = queries.centre, both.centre.reshape(length * v, -1)
    k = k - k.mean(0)
    a = k.T @ (k @ q.sum(0))  # one step of power iteration
    b = q.T @ (q @ a)
    a = k.T @ (k @ b)
    c, first, along = float(a @ b), q @ a, k @ b
    if not c > 0:
        return None
    q_rest, k_rest = q - np.outer(first / c, b), k - np.outer(along / c, a)
    k_rest = k_rest - k_rest.mean(0)
    omega = 2 * np.linalg.norm(q_rest, axis=1) * np.linalg.norm(k_rest, axis=1).max()
    # Rounding of each step, relative to what it adds up, and of the queries and keys themselves.
    sizes = np.abs(q).sum(1) + np.abs(first / c) * np.abs(b).sum()
    sizes = sizes * (np.abs(k).max() + np.abs(along / c).max() * np.abs(a).max())
    off = 2.0**-40 * sizes + queries.radius.sum(1) * both.magnitude.max()
    off = off + queries.magnitude.sum(1) * both.radius.max()
    nats = omega * UP + 4 * off
    known = nats < _RAISED  # of other queries nothing is said
    raised = np.where(known, np.exp(np.where(known, nats, 0.0)) * (1 + 2.0**-30), np.inf)
    product = np.outer(first / c, along)
    e = np.exp(product - product.max(1, keepdims=True)).reshape(v, length, v)
    e[~known] = 0.0
    bad = np.maximum(e, _FLOOR) * raised[:, None, None]
    width = len(a)
    of_scores = v * (v + length) * width  # what the tables' scores cost, and these weights do not
    steps = (6 * len(q) + 8 * len(k)) * width + v * len(k)
    return Weights(e, bad, tables.work - of_scores + steps)


@np.errstate(all="ignore")
def by_factors(tables: Tables, weights: Weights) -> tuple[float, int]:
    """The share of rows that is proved, and the multiplications.

    The worst weight and the worst O-row below a cap both grow with it, so the largest cap that
    passes is found by halving: log v products for each query, maximum and set of positions.
    """
    v, k, e, harm = tables.vocabulary, tables.length, weights.good, weights.bad
    ahead = tables.direct - largest_others(tables.direct) - tables.slack
    margin = tables.ov - largest_others(tables.ov)
    most = np.maximum.accumulate(harm[:, :-1], axis=2)
    least = np.minimum.accumulate(margin[:-1], axis=1)
    q, m = (np.arange(v)[:, None], np.arange(v)[None])
    own = ahead + margin[:, np.arange(v), np.arange(v)][:, None]
    base = _worth(own, np.moveaxis(e, 1, 0), np.moveaxis(harm, 1, 0))
    base[-1] = _worth(ahead + margin[-1], e[q, -1, q], harm[q, -1, q])
    right, work = 0, 2 * base.size + most.size + weights.work
    for copies in subsets(k):
        others = [p for p in range(k - 1) if p not in copies]
        fixed = base[-1] + base[list(copies)].sum(0)
        legal = (q == m) | ((q < m) & bool(copies))
        if not others:
            right += int((legal & (fixed > LEAST)).sum())
            continue
        low, high = np.zeros((v, v), dtype=np.int64), np.broadcast_to(m, (v, v))
        while (low < high).any():  # the answer lies in low … high; 0 is none
            cap = (low + high + 1) // 2
            at = np.maximum(cap, 1) - 1
            total = fixed + sum(
                most[q, p, at] * np.minimum(ahead + least[p, at, m], 0.0) for p in others
            )
            work += len(others) * v * (v + 1) // 2
            passed = total > LEAST
            low, high = np.where(passed, cap, low), np.where(passed, high, cap - 1)
            low = np.minimum(low, high)
        right += rows_below(np.where(legal & (low > 0), low, -1), len(others))
    return share(right, v**k), work


def _worth(gain: Array, good: Array, bad: Array) -> Array:
    """A weight times what it gains, with the weight that counts there."""
    return np.asarray(np.where(gain < 0, bad * gain, good * gain))
