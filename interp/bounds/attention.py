"""What attention can do: bounds on a pattern, and on what it fetches.

Scores are affine forms s_j (:mod:`interp.bounds.scores`). Under a softmax

    A_j = 1 / Σ_i e^{s_i − s_j}

only differences matter, and their dependence on the noise is exact, so a common shift costs
nothing. Each lies in [l_ij, u_ij], hence A_j in [1/Σ_i e^{u_ij}, 1/Σ_i e^{l_ij}]. Without a
normaliser A_j = e^{s_j}. The model's rounding (a maximum subtracted, two e^x of c units each, a
sum, a quotient) changes A_j by a factor within 1 ± γ_{n+2c+16}, once the scores' own rounding is in
their radii, and by a few of the smallest normal numbers where e^x underflows.

What is fetched is Σ_j A_j v_j. With middles a_j, half widths w_j and any vector m

    Σ A_j v_j = Σ a_j v_j + Σ (A_j − a_j)(v_j − m) + (Σ A_j − Σ a_j) m

the first is affine; in the second each j is one new symbol that moves all channels of v_j's centre
together, and the noise of v_j times w_j is radius; the last is (1 − Σ a_j) m under a softmax, which
is known up to rounding. With m the mean of the centres, values that all keys share cost nothing,
however uncertain the pattern.

A pattern that is pinned down shows what is read, not that reading it matters.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64

from interp.bounds.affine import Affine, padded
from interp.bounds.rounding import EXP, UP, Arithmetic

__all__ = ["fetch", "pattern"]

Array = Float64[np.ndarray, "..."]


def pattern(
    scores: Affine, allowed: Bool[np.ndarray, "query key"], softmax: bool, ar: Arithmetic
) -> tuple[Array, Array]:
    """Least and largest attention, both ``[cell, head, query, key]``.

    Args:
        scores: ``[cell, head, query, key]``.
        allowed: Where a query may attend; elsewhere the attention is zero.
        softmax: Whether the pattern is normalised.
        ar: Whose rounding counts.
    """
    n = scores.shape[-1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        low, high = _normalised(scores, allowed, ar) if softmax else _numerators(scores)
    widened = 2.0**-45 + float(ar.error(n + 2 * EXP + 16, np.ones(())))
    relative = widened if widened < 0.5 else np.inf
    underflow = float(ar.error(4, np.zeros(())))
    low = np.nan_to_num(low, nan=0.0, posinf=0.0) * (1 - relative) - underflow
    high = np.nan_to_num(high, nan=np.inf, posinf=np.inf) * (1 + relative) + underflow
    # A score that may overflow can make a row no number: ∞ − ∞, where the mask is −∞ too.
    number = np.asarray(np.isfinite(np.stack(scores.bounds())).all((0, -1)))[..., None]
    number = number | (ar.dtype == "real")
    high = np.where(number, np.minimum(high, 1.0 + relative) if softmax else high, np.inf)
    low, high = np.maximum(low, 0.0), np.where(np.isfinite(ar.error(1, high)), high, np.inf)
    return np.where(allowed, low, 0.0), np.where(allowed, high, 0.0)


def _numerators(scores: Affine) -> tuple[Array, Array]:
    low, high = scores.bounds()
    return np.exp(low), np.exp(high)


def _normalised(
    scores: Affine, allowed: Bool[np.ndarray, "query key"], ar: Arithmetic
) -> tuple[Array, Array]:
    """Σ_i e^{s_i − s_j} for each j, one key at a time: k² differences are never all in memory.

    The model subtracts the largest score from each before e^x: four roundings of that size.
    """
    largest = np.where(allowed, scores.magnitude, 0.0).max(-1, keepdims=True)
    rounded = ar.error(8, largest)
    least, most = np.zeros(scores.shape), np.zeros(scores.shape)
    for i in range(scores.shape[-1]):
        own = scores[..., i : i + 1]
        centre = own.centre - scores.centre
        noise = np.abs(own.generators - scores.generators).sum(0) + own.radius + scores.radius
        off = (noise + rounded) * UP
        may = allowed[:, i : i + 1]
        same = np.arange(scores.shape[-1]) == i
        least += np.where(may, np.where(same, 1.0, np.exp(centre - off)), 0.0)
        most += np.where(may, np.where(same, 1.0, np.exp(centre + off)), 0.0)
    return 1 / most, 1 / least


def fetch(
    low: Array, high: Array, values: Affine, softmax: bool, ar: Arithmetic, keys: int = 0
) -> Affine:
    """Σ_j A_j v_j, ``[cell, query, head, channel]``.

    Args:
        low, high: Of the pattern, ``[cell, head, query, key]``.
        values: ``[cell, key, head, channel]``.
        softmax: Whether Σ_j A_j = 1.
        ar: Whose rounding counts.
        keys: How many the model sums over, if some stand together here for several.
    """
    middle = (low + high) / 2
    half = np.maximum(high - middle, middle - low) * UP
    known = np.isfinite(middle).all() and np.isfinite(half).all()
    middle, half = np.nan_to_num(middle, posinf=0.0), np.where(np.isfinite(half), half, 0.0)
    centre = np.einsum("chqk,ckhd->cqhd", middle, values.centre)
    generators = np.einsum("chqk,gckhd->gcqhd", middle, values.generators, optimize=True)
    ar.multiplications += centre.size * low.shape[-1] * (1 + len(values.generators))
    n = max(keys, low.shape[-1])
    seen = np.maximum(np.abs(low), np.abs(high))
    size = np.einsum("chqk,ckhd->cqhd", seen, values.magnitude)
    radius = np.einsum("chqk,ckhd->cqhd", middle, values.radius) + ar.error(n + 4, size * UP)
    mean = values.centre.mean(axis=1, keepdims=True) if softmax else np.zeros(())
    lever = np.broadcast_to(values.centre - mean, values.shape)
    noise = np.einsum("chqk,ckhd->cqhd", half, values.deviation)
    lost = 0.0
    if softmax:  # Σ A_j is one up to rounding; what Σ a_j misses is known up to γ_n
        held = middle.sum(-1)
        centre = centre + np.einsum("chq,cthd->cqhd", 1 - held, mean)
        rounded = ar.error(n + 8, 1 + held) * 4
        lost = np.einsum("chq,cthd->cqhd", rounded, np.abs(mean))
    radius = (radius + (noise + lost) * UP) * UP
    if not known:
        radius = np.full_like(radius, np.inf)
    found = Affine(centre, generators, radius)
    sizes = np.abs(values.centre) + np.abs(mean)
    return _levers(found, half, lever, sizes, ar)


def _levers(found: Affine, half: Array, lever: Array, sizes: Array, ar: Arithmetic) -> Affine:
    """Add Σ_j ε_j w_j lever_j, a symbol for each head, query and key whose attention is unsure.

    Both products and the lever itself are rounded: a few units of roundoff of w_j · ``sizes``.
    """
    active = np.argwhere((half > 0).any(0) & (half > 2.0**-40).any(0))
    tiny = np.where(half > 2.0**-40, 0.0, half)
    spread = np.einsum("chqk,ckhd->cqhd", tiny, np.abs(lever))
    size = int(np.prod(found.shape))
    if (ar.symbols + len(active)) * size > ar.budget:
        spread = np.einsum("chqk,ckhd->cqhd", half, np.abs(lever))
        active = active[:0]
    radius = (found.radius + spread * UP) * UP
    if not len(active):
        return Affine(found.centre, found.generators, radius)
    new = np.zeros((len(active), *found.shape))
    unsure = half - tiny
    for row, (head, query, key) in enumerate(active):
        new[row, :, query, head] = unsure[:, head, query, key, None] * lever[:, key, head]
    generators = np.concatenate((padded(found.generators, ar.symbols), new))
    ar.symbols += len(active)
    rounded = np.einsum("chqk,ckhd->cqhd", half, sizes) * 2.0**-49
    return Affine(found.centre, generators, (radius + rounded) * UP)
