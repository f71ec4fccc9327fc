"""What a transformer's output can be when its input lies in given cells.

    embed → (input FFN) → blocks of attention and FFN → final norm → unembedding

with every intermediate value an affine form that covers the real one and every rounded one
(:mod:`interp.bounds.affine`). Cells are done side by side: the first axis of every array. A cell
that is one input gives that input's output up to rounding; a cell that is the whole domain gives a
bound without any insight. Everything between is the choice of a strategy.

The output is bounded at the last position alone: in a causal model what follows does not matter, so
other positions are the last ones of shorter inputs. What is not covered is refused with its name:
RoPE, ``pair_sign``, and what is no ``SequenceTransformer``.

Not for large models: generators are dense, a number for each symbol, cell, position and channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from interp.bounds.affine import Affine, add, exactly, linear, scale
from interp.bounds.attention import fetch, pattern
from interp.bounds.relaxation import apply, gelu, relu
from interp.bounds.rounding import UP, Arithmetic
from interp.bounds.scores import linear_heads, score_forms, weights

__all__ = [
    "after_attention",
    "after_ffn",
    "attended",
    "embedded",
    "entered",
    "last_stream",
    "margins",
    "normed",
    "not_covered",
    "output",
    "read_out",
    "stream_after",
]

_ACTIVATIONS = {"relu": relu, "gelu": gelu}


def not_covered(model: Any) -> str:
    """Why bounds do not cover a model; empty if they do."""
    spec = getattr(model, "spec", None)
    if spec is None or not hasattr(model, "blocks") or not hasattr(spec, "n_layers"):
        return f"{type(model).__name__} is not a transformer of prooflens"
    if spec.positions == "rope":
        return "rotary positions are not covered"
    widths = [*spec.ffn_widths, spec.input_ffn]
    used = {spec.activation_of(i) for hidden in widths for i in range(len(hidden))}
    if not used <= set(_ACTIVATIONS):
        return f"the activation {', '.join(sorted(used - set(_ACTIVATIONS)))} is not covered"
    if spec.dtype not in ("float32", "float64"):
        return f"evaluation in {spec.dtype} is not covered: convert it to float32"
    return ""


def embedded(model: Any, inputs: Affine | Int[np.ndarray, "cell pos"], ar: Arithmetic) -> Affine:
    """What enters the first block, ``[cell, pos, d_model]``.

    Args:
        model: A covered model (:func:`not_covered`).
        inputs: Forms of real inputs ``[cell, pos, d_in]`` or of one-hot tokens (a convex mixture
            of tokens), or token ids.
        ar: Whose rounding counts.
    """
    table = weights(model.embed.W_E)
    if not isinstance(inputs, Affine):
        return entered(model, exactly(table[inputs]), ar)
    return entered(model, linear(inputs, table, None, ar), ar)


def entered(model: Any, x: Affine, ar: Arithmetic) -> Affine:
    """What enters the first block when ``x`` are the embedded inputs, without positions."""
    if model.pos_embed is not None:
        x = add(x, exactly(weights(model.pos_embed.W_pos)[: x.shape[1]][None]), ar)
    if model.input_ffn is None:
        return x
    out = _ffn(model.input_ffn, x, ar)
    return add(x, out, ar) if model.spec.residual else out


def output(model: Any, inputs: Affine | Int[np.ndarray, "cell pos"], ar: Arithmetic) -> Affine:
    """The output at the last position, ``[cell, d_out]``; see :func:`embedded`."""
    return read_out(model, last_stream(model, inputs, ar), ar)


def last_stream(model: Any, inputs: Affine | Int[np.ndarray, "cell pos"], ar: Arithmetic) -> Affine:
    """The residual stream at the last position after all blocks, ``[cell, d_model]``; see
    :func:`embedded`."""
    return stream_after(model, embedded(model, inputs, ar), ar)


def stream_after(model: Any, x: Affine, ar: Arithmetic, scores: Affine | None = None) -> Affine:
    """The residual stream at the last position after all blocks, ``[cell, d_model]``.

    Args:
        model: A covered model.
        x: What enters the first block, ``[cell, pos, d_model]``.
        ar: Whose rounding counts.
        scores: The first layer's scores, ``[cell, head, query, key]``, where more is known of them
            than follows from ``x``.
    """
    last = len(model.blocks) - 1
    for layer, block in enumerate(model.blocks):
        known = scores if layer == 0 else None
        x = after_attention(block, x, ar, last_only=layer == last, scores=known)
        x = after_ffn(block, x, ar)
    return x[:, -1]


def read_out(model: Any, stream: Affine, ar: Arithmetic) -> Affine:
    """The output ``[cell, d_out]`` of a last residual stream."""
    x = normed(model.ln_final, stream, ar)
    return linear(x, weights(model.W_U), weights(model.b_U), ar)


def margins(model: Any, stream: Affine, token: int, ar: Arithmetic) -> Affine:
    """By how much one output exceeds each other one, ``[cell, d_out − 1]``.

    Differences of columns are taken before the unembedding is applied, so what outputs share
    cancels; the rounding is that of both outputs.
    """
    x = normed(model.ln_final, stream, ar)
    w, b = weights(model.W_U), weights(model.b_U)
    others, rest = np.delete(w, token, axis=1), np.delete(b, token)
    found = linear(x, w[:, [token]] - others, b[token] - rest, ar)
    both = np.abs(w[:, [token]]) + np.abs(others)
    size = x.magnitude @ both + np.abs(b[token]) + np.abs(rest)
    rounding = ar.error(len(w) + 4, size * UP)
    return Affine(found.centre, found.generators, (found.radius + rounding) * UP)


def after_attention(
    block: Any, x: Affine, ar: Arithmetic, *, last_only: bool, scores: Affine | None = None
) -> Affine:
    """The residual stream between a block's attention and its FFN.

    Args:
        block: A covered model's block.
        x: What enters it, ``[cell, pos, d_model]``.
        ar: Whose rounding counts.
        last_only: The last position alone, ``[cell, 1, d_model]``.
        scores: As in :func:`stream_after`, of this layer.
    """
    out = _attention(block, x, ar, last_only, scores)
    x = x[:, -1:] if last_only else x
    return add(x, out, ar) if block.residual else out


def after_ffn(block: Any, x: Affine, ar: Arithmetic) -> Affine:
    """The residual stream after a block, from that between its attention and its FFN."""
    if block.mlp is None:
        return x
    out = _ffn(block.mlp, normed(block.ln2, x, ar), ar)
    return add(x, out, ar) if block.residual else out


def attended(model: Any, x: Affine, layer: int, ar: Arithmetic) -> tuple[Any, Any]:
    """Least and largest attention of the last position in a layer, ``[cell, head, key]``.

    Args:
        model: A covered model.
        x: What enters the first block, ``[cell, pos, d_model]``.
        layer: Its number.
        ar: Whose rounding counts.
    """
    for block in model.blocks[:layer]:
        x = after_ffn(block, after_attention(block, x, ar, last_only=False), ar)
    block = model.blocks[layer]
    low, high, _ = _looks(block, normed(block.ln1, x, ar), ar, last_only=True, scores=None)
    return low[:, :, 0], high[:, :, 0]


def _looks(
    block: Any, seen: Affine, ar: Arithmetic, *, last_only: bool, scores: Affine | None
) -> tuple[Any, Any, Bool[np.ndarray, "query key"]]:
    """Least and largest attention ``[cell, head, query, key]``, and where there may be any."""
    spec, position = block.attn.spec, np.arange(seen.shape[1])
    lags = (position[-1:] if last_only else position)[:, None] - position
    allowed = np.ones(lags.shape, dtype=bool) if not spec.causal else lags >= 0
    allowed = allowed & (lags != 0) if spec.mask_self else allowed
    if scores is None:
        query = seen[:, -1:] if last_only else seen
        scores = score_forms(block.attn, query, seen, lags, ar)
    elif last_only:
        scores = scores[:, :, -1:]
    return *pattern(scores, allowed, spec.normalizer == "softmax", ar), allowed


def _attention(
    block: Any, x: Affine, ar: Arithmetic, last_only: bool, scores: Affine | None
) -> Affine:
    attn, spec = block.attn, block.attn.spec
    seen = normed(block.ln1, x, ar)
    low, high, allowed = _looks(block, seen, ar, last_only=last_only, scores=scores)
    rows = allowed.any(-1)  # a query that may attend to nothing fetches nothing
    whole = spec.normalizer == "softmax" and bool(rows.all())
    values = linear_heads(seen, attn.W_V, attn.b_V, ar)
    z = fetch(low, high, values, whole, ar)
    out = linear(z.reshape(*z.shape[:2], -1), _flat(weights(attn.W_O)), weights(attn.b_O), ar)
    if not spec.identity_ov:
        return out
    every = (np.repeat(part[..., None, :], low.shape[1], axis=-2) for part in _parts(seen))
    passed = fetch(low, high, Affine(*every), whole, ar)
    factor = (weights(attn.multiplier) * weights(attn.b) * weights(attn.used_heads))[:, None]
    passed = scale(passed, factor, ar)
    ones = np.tile(np.eye(passed.shape[-1]), (passed.shape[-2], 1))
    return add(out, linear(passed.reshape(*passed.shape[:2], -1), ones, None, ar), ar)


def _ffn(ffn: Any, x: Affine, ar: Arithmetic) -> Affine:
    for hidden in ffn.hidden:
        x = apply(
            linear(x, weights(hidden.W), weights(hidden.b), ar), _ACTIVATIONS[hidden.kind], ar
        )
    pre = linear(x, weights(ffn.W_in), weights(ffn.b_in), ar)
    post = apply(pre, _ACTIVATIONS[ffn.kind], ar)
    return linear(post, weights(ffn.W_out), weights(ffn.b_out), ar)


def normed(norm: Any, x: Affine, ar: Arithmetic) -> Affine:
    """LayerNorm, RMSNorm or none: the scale lies in an interval, the rest is linear.

    y = (x − mean) s with s = 1/√(mean square + ε) in [a, b]: the middle of [a, b] scales the form,
    and the half width times the largest |x − mean| is noise. The square root and quotient round
    like n + 8 operations on y. Where the squares may overflow nothing is known.
    """
    if norm.kind == "none":
        return x
    n = x.shape[-1]
    if norm.kind == "layernorm":
        x = linear(x, np.eye(n) - 1.0 / n, None, ar)
        rounding = ar.error(n + 4, np.broadcast_to(x.magnitude.max(-1, keepdims=True), x.shape))
        x = Affine(x.centre, x.generators, x.radius + rounding)
    low, high = _inverse_scale(x, norm.eps, ar)
    middle = (low + high) / 2
    half = np.maximum(high - middle, middle - low) * UP
    found = scale(x, np.broadcast_to(middle, x.shape), ar)
    size = x.magnitude * high
    noise = half * x.magnitude + ar.error(n + 8, size * UP)
    found = Affine(found.centre, found.generators, (found.radius + noise) * UP)
    if norm.w is not None:
        found = scale(found, weights(norm.w), ar)
    return found if norm.b is None else add(found, exactly(weights(norm.b)), ar)


def _inverse_scale(x: Affine, eps: float, ar: Arithmetic) -> tuple[Any, Any]:
    """Bounds on 1/√(mean x² + ε), ``[…, 1]``; 0 and infinity where the squares may overflow."""
    low, high = x.bounds()
    least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    most = np.maximum(np.abs(low), np.abs(high))
    widen, lost = 1 + 2.0**-40, float(ar.error(2, np.zeros(())))  # what underflows, ε too
    sure = max(eps - lost, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        squares = (most**2).sum(-1, keepdims=True)
        a = 1 / np.sqrt(squares / x.shape[-1] + lost + eps) / widen
        b = 1 / np.sqrt(np.maximum((least**2).mean(-1, keepdims=True) - lost, 0) + sure) * widen
        known = np.isfinite(ar.error(1, squares))
    return np.where(known, a, 0.0), np.where(known, b, np.inf)


def _flat(w: Float64[np.ndarray, "head width d_model"]) -> Float64[np.ndarray, "both d_model"]:
    return w.reshape(-1, w.shape[-1])


def _parts(x: Affine) -> tuple[Any, Any, Any]:
    return x.centre, x.generators, x.radius
