"""Bounds on attention: on the pattern, and on the values that it fetches.

Scores are affine forms s_j. Under a softmax

    A_j = 1 / Σ_i e^{s_i − s_j}

only differences matter, and their dependence on the noise is exact, so a common shift does not
widen the bound. Each difference lies in [l_ij, u_ij], hence A_j in [1/Σ_i e^{u_ij}, 1/Σ_i
e^{l_ij}]. Without a normaliser A_j = e^{s_j}. The model's rounding (a maximum subtracted, two e^x
of c units each, a sum, a quotient) changes A_j by a factor within 1 ± γ_{n+2c+16}, given that the
scores' own rounding is in their radii, and by a few of the smallest normal numbers where e^x
underflows.

The fetched value is Σ_j A_j v_j. With middles a_j, half widths w_j and any vector m

    Σ A_j v_j = Σ a_j v_j + Σ (A_j − a_j)(v_j − m) + (Σ A_j − Σ a_j) m

the first term is affine; in the second each j is one new symbol that moves all channels of v_j's
centre together, and the noise of v_j times w_j is radius; the last is (1 − Σ a_j) m under a
softmax, which is known up to rounding. With m the mean of the centres, values that all keys share
do not widen the bound, however uncertain the pattern.

A narrow bound on a pattern shows what the head reads, not that reading it matters.

*The scores* are the sum of the terms that a spec names:

    dot            ⟨q_t, k_j⟩/√d_head      product of two forms
    identity       a_h ⟨x_t, x_j⟩          product of two forms
    relative_keys  ⟨q_t, r_s⟩/√d_head      linear in x_t
    bump           −p s²/2 + (c + ⟨w, x_t⟩) s      linear in x_t
    slope          −(p + ⟨w, x_t⟩) φ(s)            linear in x_t
    gate           ⟨w, x_t⟩                        linear in x_t
    lin, log, table                                known numbers

The formulas are those of :mod:`interp.models.attention.heads`; each adds its rounding, and so does
their sum. RoPE is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from interp.bounds.affine import (
    EXP,
    UP,
    Affine,
    Arithmetic,
    add,
    add_axes,
    dot,
    exactly,
    linear,
    pad_symbols,
    scale,
)

Array = Float64[np.ndarray, "..."]


def weights(tensor: Any) -> Array:
    """Return a torch parameter as a NumPy array in float64, which holds float32 values exactly."""
    return np.asarray(tensor.detach().cpu().double().numpy())


def score_forms(
    attn: Any, query: Affine, keys: Affine, lags: Int[np.ndarray, "query key"], ar: Arithmetic
) -> Affine:
    """Return the scores ``[cell, head, query, key]`` of a layer's attention.

    Args:
        attn: The layer's ``Attention``.
        query: The normalised stream at the query positions, ``[cell, query, d_model]``.
        keys: The normalised stream at all positions, ``[cell, key, d_model]``.
        lags: Query minus key position.
        ar: The arithmetic whose rounding is covered.
    """
    heads = attn.W_V.shape[0]
    total = exactly(np.zeros((1, heads, *lags.shape)))
    for part in _terms(attn, query, keys, lags, ar):
        total = add(total, part, ar)
    return total


def _terms(
    attn: Any, query: Affine, keys: Affine, lags: Int[np.ndarray, "query key"], ar: Arithmetic
) -> Iterator[Affine]:
    terms = dict(attn.terms.items())
    if "dot" in terms:
        q = _heads(linear_heads(query, attn.W_Q, attn.b_Q, ar), 2)
        k = _heads(linear_heads(keys, attn.W_K, attn.b_K, ar), 1)
        yield scale(dot(q, k, ar), np.asarray(terms["dot"].scale), ar)
    if "identity" in terms:
        term = terms["identity"]
        same = dot(_everywhere(query, 2), _everywhere(keys, 1), ar)
        factor = (weights(term.multiplier) * weights(term.a))[:, None, None]
        factor = factor * np.where(term.mask_self & (lags == 0), 0.0, 1.0)
        yield scale(_broadcast(same, factor), factor, ar)
    if "gate" in terms:
        yield _query_scalar(query, terms["gate"].w, ar)
    if "lag" in terms:
        yield _lag(terms["lag"], query, lags, ar)
    if "table" in terms:
        table = terms["table"]
        index = np.maximum(lags + table.offset, 0)
        yield exactly(weights(table.bias)[:, index][None])
    if "relative_keys" in terms:
        term = terms["relative_keys"]
        q = _heads(linear_heads(query, attn.W_Q, attn.b_Q, ar), 2)
        index = np.maximum(lags + term.offset, 0)
        keys_of_lags = exactly(weights(term.r)[:, index][None])
        yield scale(dot(q, keys_of_lags, ar), np.asarray(term.scale), ar)
    if "bump" in terms:
        yield _bump(terms["bump"], query, lags, ar)


def _lag(term: Any, query: Affine, lags: Int[np.ndarray, "query key"], ar: Arithmetic) -> Affine:
    phi = np.abs(lags).astype(np.float64)
    phi = np.log1p(phi) if term.log else phi
    slope = exactly(np.abs(weights(term.p))[None, :, None, None])
    if term.w is not None:
        slope = add(slope, _query_scalar(query, term.w, ar), ar)
    full = _broadcast(slope, np.broadcast_to(phi, (1, slope.shape[1], *phi.shape)))
    found = scale(full, -phi, ar)
    rounding = ar.error(8, found.magnitude)  # of φ, in the model and here
    return Affine(found.centre, found.generators, found.radius + rounding)


def _bump(term: Any, query: Affine, lags: Int[np.ndarray, "query key"], ar: Arithmetic) -> Affine:
    s = lags.astype(np.float64)
    centre = exactly(weights(term.c)[None, :, None, None])
    top = add(centre, _query_scalar(query, term.w, ar), ar)
    p = np.abs(weights(term.p))[None, :, None, None]
    moved = scale(_broadcast(top, np.broadcast_to(s, (1, p.shape[1], *s.shape))), s, ar)
    parabola = -p * s**2 / 2
    found = add(moved, exactly(parabola), ar)
    rounding = ar.error(4, np.abs(parabola))
    return Affine(found.centre, found.generators, found.radius + rounding)


def linear_heads(x: Affine, weight: Any, bias: Any, ar: Arithmetic) -> Affine:
    """Return x W_h + b_h for all heads, ``[cell, pos, head, d_head]``."""
    w, b = weights(weight), weights(bias)
    heads, d_model, width = w.shape
    flat = linear(x, w.transpose(1, 0, 2).reshape(d_model, heads * width), b.reshape(-1), ar)
    return flat.reshape(*x.shape[:-1], heads, width)


def _query_scalar(query: Affine, w: Any, ar: Arithmetic) -> Affine:
    """Return ⟨w_h, x_t⟩, ``[cell, head, query, 1]``."""
    found = linear(query, weights(w).T, None, ar)
    moved = (np.moveaxis(part, -1, -2)[..., None] for part in _parts(found))
    return Affine(*moved)


def _heads(x: Affine, axis: int) -> Affine:
    """Move axes: ``[cell, pos, head, d]`` → ``[cell, head, pos, 1, d]`` (axis 2) or ``[…, 1, pos,
    d]``."""
    # With the new axis where the other's positions go: 2 for queries, 1 for keys.
    moved = (
        np.expand_dims(np.moveaxis(part, -2, -3), -2 if axis == 2 else -3) for part in _parts(x)
    )
    return Affine(*moved)


def _everywhere(x: Affine, axis: int) -> Affine:
    """Insert axes: ``[cell, pos, d]`` → ``[cell, 1, pos, 1, d]`` (axis 2) or ``[cell, 1, 1, pos,
    d]``."""
    moved = (
        np.expand_dims(np.expand_dims(part, -3), -2 if axis == 2 else -3) for part in _parts(x)
    )
    return Affine(*moved)


def _broadcast(x: Affine, like: Array) -> Affine:
    """Broadcast ``x`` to the shape that it has together with ``like``."""
    shape = np.broadcast_shapes(x.shape, like.shape)
    generators = add_axes(x.generators, len(shape))
    return Affine(
        np.broadcast_to(x.centre, shape),
        np.broadcast_to(generators, (len(generators), *shape)),
        np.broadcast_to(x.radius, shape),
    )


def _parts(x: Affine) -> tuple[Array, Array, Array]:
    return x.centre, x.generators, x.radius


def pattern(
    scores: Affine, allowed: Bool[np.ndarray, "query key"], softmax: bool, ar: Arithmetic
) -> tuple[Array, Array]:
    """Return the least and largest attention, both ``[cell, head, query, key]``.

    Args:
        scores: The scores, ``[cell, head, query, key]``.
        allowed: Where a query may attend; elsewhere the attention is zero.
        softmax: Whether the pattern is normalised.
        ar: The arithmetic whose rounding is covered.
    """
    n = scores.shape[-1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        low, high = _softmax_sums(scores, allowed, ar) if softmax else _numerators(scores)
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


def _softmax_sums(
    scores: Affine, allowed: Bool[np.ndarray, "query key"], ar: Arithmetic
) -> tuple[Array, Array]:
    """Return bounds on Σ_i e^{s_i − s_j} for each j, one key at a time to save memory.

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
    """Return Σ_j A_j v_j, ``[cell, query, head, channel]``.

    Args:
        low, high: Bounds of the pattern, ``[cell, head, query, key]``.
        values: The value vectors, ``[cell, key, head, channel]``.
        softmax: Whether Σ_j A_j = 1.
        ar: The arithmetic whose rounding is covered.
        keys: The number of keys that the model sums over, if entries here stand for several keys.
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
    """Add Σ_j ε_j w_j lever_j, a symbol for each head, query and key whose attention is uncertain.

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
    generators = np.concatenate((pad_symbols(found.generators, ar.symbols), new))
    ar.symbols += len(active)
    rounded = np.einsum("chqk,ckhd->cqhd", half, sizes) * 2.0**-49
    return Affine(found.centre, generators, (radius + rounded) * UP)
