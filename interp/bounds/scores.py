"""Attention scores as affine forms: the sum of the terms that a spec names.

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
from jaxtyping import Float64, Int

from interp.bounds.affine import Affine, add, dot, exactly, lifted, linear, scale
from interp.bounds.rounding import Arithmetic

__all__ = ["score_forms", "weights"]

Array = Float64[np.ndarray, "..."]


def weights(tensor: Any) -> Array:
    """A parameter as float64, which holds every float32 exactly."""
    return np.asarray(tensor.detach().cpu().double().numpy())


def score_forms(
    attn: Any, query: Affine, keys: Affine, lags: Int[np.ndarray, "query key"], ar: Arithmetic
) -> Affine:
    """Scores ``[cell, head, query, key]`` of a layer's attention.

    Args:
        attn: The layer's ``Attention``.
        query: What enters it at the query positions, after the norm, ``[cell, query, d_model]``.
        keys: The same at all positions, ``[cell, key, d_model]``.
        lags: Query minus key.
        ar: Whose rounding counts.
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
    """x W_h + b_h for all heads, ``[cell, pos, head, d_head]``."""
    w, b = weights(weight), weights(bias)
    heads, d_model, width = w.shape
    flat = linear(x, w.transpose(1, 0, 2).reshape(d_model, heads * width), b.reshape(-1), ar)
    return flat.reshape(*x.shape[:-1], heads, width)


def _query_scalar(query: Affine, w: Any, ar: Arithmetic) -> Affine:
    """⟨w_h, x_t⟩, ``[cell, head, query, 1]``."""
    found = linear(query, weights(w).T, None, ar)
    moved = (np.moveaxis(part, -1, -2)[..., None] for part in _parts(found))
    return Affine(*moved)


def _heads(x: Affine, axis: int) -> Affine:
    """``[cell, pos, head, d]`` → ``[cell, head, pos, 1, d]`` (axis 2) or ``[…, 1, pos, d]``."""
    # With the new axis where the other's positions go: 2 for queries, 1 for keys.
    moved = (
        np.expand_dims(np.moveaxis(part, -2, -3), -2 if axis == 2 else -3) for part in _parts(x)
    )
    return Affine(*moved)


def _everywhere(x: Affine, axis: int) -> Affine:
    """``[cell, pos, d]`` → ``[cell, 1, pos, 1, d]`` (axis 2) or ``[cell, 1, 1, pos, d]``."""
    moved = (
        np.expand_dims(np.expand_dims(part, -3), -2 if axis == 2 else -3) for part in _parts(x)
    )
    return Affine(*moved)


def _broadcast(x: Affine, like: Array) -> Affine:
    """``x`` in the shape it has together with ``like``."""
    shape = np.broadcast_shapes(x.shape, like.shape)
    generators = lifted(x.generators, len(shape))
    return Affine(
        np.broadcast_to(x.centre, shape),
        np.broadcast_to(generators, (len(generators), *shape)),
        np.broadcast_to(x.radius, shape),
    )


def _parts(x: Affine) -> tuple[Array, Array, Array]:
    return x.centre, x.generators, x.radius
