"""Two kinds of attention that are bounded as a whole, because bounds key by key would be too wide.

*Fixed attention, and a known mean.* In one layer whose attention is a fixed function of the lag,
the stream before the FFN is c + Σ_s x_s C_s. If m = Σ_s ρ_s x_s is known to lie in an interval,
then for any direction g it is

    c + m g + Σ_s x_s (C_s − ρ_s g)

so only the part that is no multiple of ρ is bounded over the box of inputs (:func:`along`).

*A token that names the lag.* Only the last layer has heads, and scores depend on the query and the
lag alone. Then the value that a key provides is a function of its own token, and

    Σ_j A_j v_j = A_0 v(query) + A_T v(token at lag T) + (Σ_rest A_j) v̄,   v̄ ∈ hull of all tokens

so the number of keys no longer matters: T and the rest enter through three weights
(:func:`bound_named_lag`).

Both are sound for models that work in another way: then C_s − ρ_s g and Σ_rest A_j are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import UP, Affine, Arithmetic, add, exactly, linear, pad_symbols, span
from interp.bounds.attention import fetch, linear_heads, pattern, score_forms, weights
from interp.bounds.network import after_attention, after_ffn, apply_norm, embed_inputs, unmet

Array = Float64[np.ndarray, "..."]


def not_along(model: Any) -> str:
    """Return why attention is no fixed function of the lag; empty if it is one."""
    spec = model.spec
    plain = spec.n_layers == 1 and spec.score == "none" and spec.norm == "none" and spec.causal
    fixed = spec.lag_bias in ("lin", "log", "table", "none") and spec.positions == "none"
    if plain and fixed and not spec.input_ffn and not spec.identity_qk and spec.input == "real":
        return ""
    return "the stream before the FFN is no fixed linear function of the inputs"


def along(
    model: Any,
    free: Affine,
    rho: Float64[np.ndarray, " pos"],
    middle: Float64[np.ndarray, " cell"],
    half: Float64[np.ndarray, " cell"],
    ar: Arithmetic,
) -> Affine:
    """Return the last stream ``[cell, d_model]`` if Σ_s ρ_s x_s lies within ``half`` of ``middle``.

    g is the least-squares direction; another one would be sound too.

    Args:
        model: A model for which :func:`not_along` is empty.
        free: The inputs, ``[cell, pos, 1]``, symbol s moving input s alone and in all cells alike.
        rho: The weights ρ, oldest input first.
        middle, half: Middle and half width of each cell's interval; its symbol follows the inputs'.
        ar: The arithmetic whose rounding is covered; its symbols are those of the inputs and of the
            interval.
    """
    block, n = model.blocks[0], len(rho)
    box = free.generators[np.arange(n), 0, np.arange(n), 0]
    stream = after_attention(block, embed_inputs(model, free, ar), ar, last_only=True)
    own = stream.generators[:n, 0, 0] / box[:, None]
    g = rho @ own / (rho @ rho)
    rest = stream.generators[:n] - ((rho * box)[:, None] * g)[:, None, None]
    centre = stream.centre + middle[:, None, None] * g
    generators = np.concatenate((rest, (half[:, None, None] * g)[None]))
    sizes = (np.abs(own).max(0) + np.abs(g) * np.abs(rho).max()) * box.max() * (n + 1)
    reach = np.abs(middle).max() + half.max()
    rounding = (sizes + np.abs(stream.centre) + reach * np.abs(g)) * 2.0**-48
    other = np.abs(stream.generators[n:]).sum(0)  # attention that its rounding leaves unsure
    moved = Affine(centre, generators, (stream.radius + other * UP + rounding) * UP)
    return after_ffn(block, moved, ar)[:, -1]


def not_orderless(model: Any) -> str:
    """Return why the last output depends on the order of earlier tokens; empty if it does not."""
    spec = model.spec
    if spec.n_layers <= 1 and spec.positions == "none" and spec.lag_bias == "none":
        return ""
    return "with more than one layer, or with positions, the order of the tokens is seen"


def not_named(model: Any) -> str:
    """Return why a key's weight depends on more than query and lag; empty if it does not."""
    spec = model.spec
    # A layer has parameters for the largest number of heads; those it lacks must write nothing.
    idle = not any(spec.heads[:-1]) and not any(bool(b.attn.W_O.any()) for b in model.blocks[:-1])
    needed = {
        "heads in the last layer alone": idle and spec.heads[-1] > 0,
        "scores of query and lag alone": spec.score in ("none", "slope") and not spec.identity_qk,
        "no positions": spec.positions == "none",
        "a softmax over all that was seen": spec.normalizer == "softmax" and not spec.mask_self,
        "causal attention": spec.causal,
        "no b·I": not spec.identity_ov,
        "a residual stream": spec.residual,
        "real inputs": spec.input == "real",
    }
    return unmet("a named lag needs", needed)


def _before(model: Any, tokens: Affine, ar: Arithmetic) -> Affine:
    """Return the stream that enters the last block, for each token by itself."""
    x = embed_inputs(model, tokens, ar)
    for block in model.blocks[:-1]:
        x = after_ffn(block, add(x, _idle(block, x, model.spec.n_ctx, ar), ar), ar)
    return x


def _idle(block: Any, x: Affine, length: int, ar: Arithmetic) -> Affine:
    """Return what attention without heads adds: its bias.

    A model still computes a pattern and multiplies the fetched values by zero, so if these may
    overflow (0 · ∞), the bound is infinite.
    """
    bias = exactly(np.broadcast_to(weights(block.attn.b_O), x.shape))
    if ar.dtype == "real":
        return bias
    seen, lags = apply_norm(block.ln1, x, ar), np.arange(1 - length, length)[None]
    forms = (
        score_forms(block.attn, seen, seen, lags, ar),
        linear_heads(seen, block.attn.W_V, block.attn.b_V, ar),
    )
    known = all(np.isfinite(np.stack(form.bounds())).all() for form in forms)
    return bias if known else Affine(bias.centre, bias.generators, bias.radius + np.inf)


def values_of(model: Any, tokens: Affine, ar: Arithmetic) -> tuple[Array, Array]:
    """Return the least and largest value vectors of any of these tokens, ``[head, channel]`` each.

    Args:
        model: A model for which :func:`not_named` is empty.
        tokens: Cells that together contain every token, ``[cell, 1, d_in]``.
        ar: The arithmetic whose rounding is covered.
    """
    block = model.blocks[-1]
    seen = apply_norm(block.ln1, _before(model, tokens, ar), ar)
    low, high = linear_heads(seen, block.attn.W_V, block.attn.b_V, ar).bounds()
    return low.min((0, 1)), high.max((0, 1))


def weights_of_keys(
    model: Any, query: Affine, lag: int, lengths: Sequence[int], ar: Arithmetic
) -> tuple[Array, Array]:
    """Bound the attention to lag ``lag``, to all other lags except 0 together, and to lag 0.

    Args:
        model: A model for which :func:`not_named` is empty.
        query: The last token, ``[cell, 1, d_in]``.
        lag: How many positions back, at least 1.
        lengths: Lengths of rows; the bounds hold for each.
        ar: The arithmetic whose rounding is covered.

    Returns:
        The least and the largest attention, both ``[cell, head, 1, 3]``.
    """
    return _weights(
        model, apply_norm(model.blocks[-1].ln1, _before(model, query, ar), ar), lag, lengths, ar
    )


def _weights(
    model: Any, seen: Affine, lag: int, lengths: Sequence[int], ar: Arithmetic
) -> tuple[Array, Array]:
    least: list[Array] = []
    most: list[Array] = []
    for n in lengths:
        lags = np.arange(n - 1, -1, -1)[None]
        scores = score_forms(model.blocks[-1].attn, seen, seen, lags, ar)
        low, high = pattern(scores, lags >= 0, True, ar)
        others = [j for j in range(n - 1) if j != n - 1 - lag]
        for bound, kept, side in ((low, least, 1 / UP), (high, most, UP)):
            rest = bound[..., others].sum(-1) * side
            kept.append(np.stack((bound[..., n - 1 - lag], rest, bound[..., -1]), -1))
    return np.min(least, 0), np.max(most, 0)


def bound_named_lag(
    model: Any,
    fetched: Affine,
    query: Affine,
    lag: int,
    lengths: Sequence[int],
    others: tuple[Array, Array],
    ar: Arithmetic,
) -> Affine:
    """Bound the final residual stream at the last position, given two tokens of the row.

    The given tokens are the last one and the one at lag ``lag``. Every other token may be any in
    the hull that ``others`` describes.

    Args:
        model: A model for which :func:`not_named` is empty.
        fetched: The token at lag ``lag``, ``[cell, 1, d_in]``.
        query: The last token, ``[cell, 1, d_in]``.
        lag: Distance from the last position, at least 1.
        lengths: Row lengths; the bound holds for rows of each of them.
        others: Lower and upper bounds of the value vectors of all tokens, ``[head, channel]``
            each, from :func:`values_of`.
        ar: The arithmetic whose rounding is covered. Its noise symbols must be those of the two
            tokens.

    Returns:
        The affine form of the stream after the last block, ``[cell, d_model]``.
    """
    block, n = model.blocks[-1], max(lengths)
    x = _before(model, query, ar)
    seen = apply_norm(block.ln1, x, ar)
    low, high = _weights(model, seen, lag, lengths, ar)
    past = apply_norm(block.ln1, _before(model, fetched, ar), ar)
    cells = (len(x.centre), *others[0].shape)
    rest = span(np.broadcast_to(others[0], cells), np.broadcast_to(others[1], cells), ar)
    now, then = (linear_heads(s, block.attn.W_V, block.attn.b_V, ar)[:, 0] for s in (seen, past))
    parts = (then, rest, now)
    values = Affine(
        np.stack([p.centre for p in parts], 1),
        np.stack([pad_symbols(p.generators, ar.symbols) for p in parts], 2),
        np.stack([p.radius for p in parts], 1),
    )
    z = fetch(low, high, values, True, ar, keys=n)
    wide = weights(block.attn.W_O)
    out = linear(
        z.reshape(*z.shape[:2], -1), wide.reshape(-1, wide.shape[-1]), weights(block.attn.b_O), ar
    )
    return after_ffn(block, add(x, out, ar), ar)[:, -1]
