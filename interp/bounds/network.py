"""Bounds on a transformer's output for all inputs in given cells.

    embed → (input FFN) → blocks of attention and FFN → final norm → unembedding

Every intermediate value is an affine form that covers the real value and every rounded one
(:mod:`interp.bounds.affine`). Cells are computed side by side: they are the first axis of every
array. A cell of a single input gives that input's output up to rounding; a cell that is the whole
domain gives a bound without any case distinction. Everything between is the choice of a strategy.

The output is bounded at the last position alone: in a causal model later positions do not matter,
so other positions are the last ones of shorter inputs. What is not covered is refused by name:
RoPE, ``pair_sign``, and models other than ``SequenceTransformer``.

Not for large models: generators are dense, a number for each symbol, cell, position and channel.

*A nonlinear function* on an interval is replaced by a linear one and a bound on the rest:

    |f(x) − (λx + μ)| ≤ ν   for every x in [low, high]

For each f: λ is a slope, and f − λx is bounded from below and above on the interval by [a, b]; then
μ = (a + b)/2 and ν = (b − a)/2. Any λ is sound; its choice only makes ν small.

    relu      λ = high/(high − low) if the sign is not fixed: f − λx lies in [0, −λ low], as it is
              convex, zero at 0 and equal at the ends; if the sign is fixed the relaxation is exact
    gelu      λ the secant's slope; f − λx on a grid of step h is within h²/8 · sup|f″| of the
              grid's values, sup|f″| = 2φ(0) < 0.798; or, on wide intervals, relu with
              −0.17 < gelu − relu ≤ 0, whichever is narrower
    1/√x      convex: the secant above, the tangent of the same slope below
    exp, 1/x  convex (x > 0 for 1/x): f − λx is largest at an end and smallest where f′ = λ; the
              tangent at any point is a lower bound, so that point need not be exact

Function values come from numpy and scipy and are widened by 16 units of roundoff, more than their
documented errors. The model's own rounding of f is not included: :func:`apply` adds it to the
radius.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy.special import erf

from interp.bounds.affine import (
    UP,
    Affine,
    Arithmetic,
    add,
    box,
    dot,
    exactly,
    fresh,
    linear,
    pad_symbols,
    scale,
)
from interp.bounds.attention import fetch, linear_heads, pattern, score_forms, weights

Array = Float64[np.ndarray, "..."]
Relaxation = tuple[Array, Array, Array]
"""The numbers λ, μ and ν of the linear relaxation of an activation function, each in the shape of
the intervals."""

_GRID = 33
_OURS = 2.0**-49  # 16 units of roundoff
_CURVATURE = 0.798
_DIP = 0.17  # gelu − relu is above −0.17 everywhere


def apply(a: Affine, f: Callable[[Array, Array], Relaxation], ar: Arithmetic) -> Affine:
    """Apply a nonlinear function to each quantity, by a linear relaxation on its interval.

    The linear part keeps the noise symbols of ``a``; the bound on the rest becomes a new noise
    symbol. The model's own rounding of the function is assumed to be at most 8 units of roundoff of
    max(|x|, |f(x)|), which holds for every library's relu, gelu and exp.

    Args:
        a: The quantities.
        f: A function from the intervals' lower and upper ends to the relaxation, such as
            :func:`relu`.
        ar: The arithmetic whose rounding is covered.
    """
    low, high = a.bounds()
    slope, shift, rest = f(low, high)
    line = add(scale(a, slope, ar), exactly(shift), ar)
    known = np.isfinite(slope + shift + rest)
    noise = np.where(known, rest, 0.0)
    size = np.where(known, np.maximum(a.magnitude, line.magnitude + rest), np.inf)
    radius = (line.radius + ar.error(8, size)) * UP
    return fresh(Affine(line.centre, line.generators, radius), noise, ar)


def relu(low: Array, high: Array) -> Relaxation:
    """Relax max(x, 0) to a linear function with an error bound on each interval [low, high]."""
    mixed = (low < 0) & (high > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(mixed, high / (high - low), (low >= 0).astype(np.float64))
        slope = np.where(mixed, np.clip(slope, 0.0, 1.0), slope)
        most = np.where(mixed, np.maximum((1 - slope) * high, -slope * low), 0.0)
    return slope, most / 2 * UP, most / 2 * UP


def gelu(low: Array, high: Array) -> Relaxation:
    """Relax GELU, x Φ(x), to a linear function with an error bound on each interval [low, high].

    Φ is the standard normal distribution function.

    Returns:
        Slope λ, shift μ and error ν with |x Φ(x) − (λx + μ)| ≤ ν on the interval.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.where(np.isfinite(high - low), high - low, 0.0)
        start = np.where(np.isfinite(low), low, 0.0)
        ends = _gelu(start), _gelu(start + width)
        slope = np.where(width > 1e-9, (ends[1] - ends[0]) / np.where(width > 0, width, 1), 0.5)
    step = width / (_GRID - 1) * UP
    points = start + step * np.arange(_GRID).reshape(-1, *(1,) * low.ndim)
    values = _gelu(points)
    rest = values - slope * points
    size = np.abs(values).max(0) + np.abs(slope) * np.abs(points).max(0)
    slack = step**2 / 8 * _CURVATURE * UP + size * _OURS * 2
    a, b = rest.min(0) - slack, rest.max(0) + slack
    r_slope, r_shift, r_rest = relu(low, high)
    a_relu, b_relu = r_shift - r_rest - _DIP, r_shift + r_rest
    wide = (b - a > b_relu - a_relu) | ~np.isfinite(high - low)
    slope = np.where(wide, r_slope, slope)
    return slope, *_middle(np.where(wide, a_relu, a), np.where(wide, b_relu, b))


def inverse_root(low: Array, high: Array) -> Relaxation:
    """Relax 1/√x to a linear function with an error bound on each interval [low, high], low > 0.

    1/√x is convex: the secant through the interval's ends bounds it from above, and the tangent of
    the same slope bounds it from below.

    Returns:
        Slope λ, shift μ and error ν with |1/√x − (λx + μ)| ≤ ν on the interval.
    """
    f, width = (lambda x: 1 / np.sqrt(x)), high - low
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        secant = (f(high) - f(low)) / np.where(width > 0, width, 1.0)
        slope = np.where(width > 1e-9 * high, secant, -0.5 * low**-1.5)
        touch = (-0.5 / slope) ** (2 / 3)
        above = np.maximum(f(low) - slope * low, f(high) - slope * high)
        below = f(touch) - slope * touch
    size = (f(low) + np.abs(slope) * high) * _OURS * 8
    return slope, *_middle(below - size, above + size)


def sine(omega: float, middle: Array, half: Array) -> Relaxation:
    """Return sin(ω(c + hε)), |ε| ≤ 1, as the linear part sin ωc + ω cos(ωc) h ε and a bound on the
    rest.

    The rest is at most (ωh)²/2, and a few units of roundoff of each factor and argument.
    """
    sizes = (1 + np.abs(omega * middle)) * (1 + np.abs(omega) * half)
    rest = ((omega * half) ** 2 / 2 + 2.0**-50 * sizes) * UP
    return np.sin(omega * middle), omega * np.cos(omega * middle) * half, rest


def _middle(a: Array, b: Array) -> tuple[Array, Array]:
    """Return μ and ν, the middle and half width of the interval [a, b]."""
    middle = (a + b) / 2
    return middle, np.maximum(b - middle, middle - a) * UP


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + erf(x / np.sqrt(2))))


_ACTIVATIONS = {"relu": relu, "gelu": gelu}


def not_covered(model: Any) -> str:
    """Return why bounds do not cover a model; empty if they do."""
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


def embed_inputs(
    model: Any, inputs: Affine | Int[np.ndarray, "cell pos"], ar: Arithmetic
) -> Affine:
    """Return the stream that enters the first block, ``[cell, pos, d_model]``.

    Args:
        model: A covered model (:func:`not_covered`).
        inputs: Forms of real inputs ``[cell, pos, d_in]`` or of one-hot tokens (a convex mixture of
            tokens), or token ids.
        ar: The arithmetic whose rounding is covered.
    """
    table = weights(model.embed.W_E)
    if not isinstance(inputs, Affine):
        return entry_stream(model, exactly(table[inputs]), ar)
    return entry_stream(model, linear(inputs, table, None, ar), ar)


def entry_stream(model: Any, x: Affine, ar: Arithmetic) -> Affine:
    """Return the residual stream that enters the first block, ``[cell, pos, d_model]``.

    Position embeddings and the input FFN are applied if the model has them.

    Args:
        model: A covered model (:func:`not_covered`).
        x: The embedded inputs before positions are added, ``[cell, pos, d_model]``.
        ar: The arithmetic whose rounding is covered.
    """
    if model.pos_embed is not None:
        x = add(x, exactly(weights(model.pos_embed.W_pos)[: x.shape[1]][None]), ar)
    if model.input_ffn is None:
        return x
    out = _ffn(model.input_ffn, x, ar)
    return add(x, out, ar) if model.spec.residual else out


def output(model: Any, inputs: Affine | Int[np.ndarray, "cell pos"], ar: Arithmetic) -> Affine:
    """Return the output at the last position, ``[cell, d_out]``; see :func:`embed_inputs`."""
    return read_out(model, last_stream(model, inputs, ar), ar)


def last_stream(model: Any, inputs: Affine | Int[np.ndarray, "cell pos"], ar: Arithmetic) -> Affine:
    """Return the residual stream at the last position after all blocks, ``[cell, d_model]``; see
    :func:`embed_inputs`."""
    return stream_after(model, embed_inputs(model, inputs, ar), ar)


def stream_after(model: Any, x: Affine, ar: Arithmetic, scores: Affine | None = None) -> Affine:
    """Return the residual stream at the last position after all blocks, ``[cell, d_model]``.

    Args:
        model: A covered model.
        x: The stream that enters the first block, ``[cell, pos, d_model]``.
        ar: The arithmetic whose rounding is covered.
        scores: The first layer's scores, ``[cell, head, query, key]``, if narrower bounds are known
            than follow from ``x``.
    """
    last = len(model.blocks) - 1
    for layer, block in enumerate(model.blocks):
        known = scores if layer == 0 else None
        x = after_attention(block, x, ar, last_only=layer == last, scores=known)
        x = after_ffn(block, x, ar)
    return x[:, -1]


def read_out(model: Any, stream: Affine, ar: Arithmetic) -> Affine:
    """Return the output ``[cell, d_out]`` for a residual stream after all blocks."""
    x = apply_norm(model.ln_final, stream, ar)
    return linear(x, weights(model.W_U), weights(model.b_U), ar)


def margins(model: Any, stream: Affine, token: int, ar: Arithmetic) -> Affine:
    """Return one output minus each of the others, as affine forms ``[cell, d_out − 1]``.

    Columns of the unembedding are subtracted before it is applied, so what two outputs share
    cancels. The rounding error of computing the two outputs separately is included.

    Args:
        model: A covered model.
        stream: The residual stream after all blocks, ``[cell, d_model]``.
        token: Index of the output that the others are compared with.
        ar: The arithmetic whose rounding is covered.
    """
    x = apply_norm(model.ln_final, stream, ar)
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
    """Return the residual stream between a block's attention and its FFN.

    Args:
        block: A covered model's block.
        x: The stream that enters it, ``[cell, pos, d_model]``.
        ar: The arithmetic whose rounding is covered.
        last_only: Whether to compute the last position alone, ``[cell, 1, d_model]``.
        scores: This layer's scores, as in :func:`stream_after`.
    """
    out = _attention(block, x, ar, last_only, scores)
    x = x[:, -1:] if last_only else x
    return add(x, out, ar) if block.residual else out


def after_ffn(block: Any, x: Affine, ar: Arithmetic) -> Affine:
    """Return the residual stream after a block, from the stream between its attention and its
    FFN."""
    if block.mlp is None:
        return x
    out = _ffn(block.mlp, apply_norm(block.ln2, x, ar), ar)
    return add(x, out, ar) if block.residual else out


def attention_bounds(model: Any, x: Affine, layer: int, ar: Arithmetic) -> tuple[Any, Any]:
    """Return the least and largest attention of the last position in a layer, ``[cell, head,
    key]``.

    Args:
        model: A covered model.
        x: The stream that enters the first block, ``[cell, pos, d_model]``.
        layer: The layer's number, from 0.
        ar: The arithmetic whose rounding is covered.
    """
    for block in model.blocks[:layer]:
        x = after_ffn(block, after_attention(block, x, ar, last_only=False), ar)
    block = model.blocks[layer]
    low, high, _ = _looks(block, apply_norm(block.ln1, x, ar), ar, last_only=True, scores=None)
    return low[:, :, 0], high[:, :, 0]


def unmet(words: str, needed: Mapping[str, bool]) -> str:
    """Return a message that lists the requirements that are not met; empty if all are met.

    Args:
        words: The beginning of the message.
        needed: Each requirement in words → whether it is met.
    """
    lacking = [name for name, holds in needed.items() if not holds]
    return f"{words} {', '.join(lacking)}" if lacking else ""


def attention_outside(model: Any, length: int, layer: int, head: int, lags: Sequence[int]) -> float:
    """Bound the attention of a head at the last position to lags other than the given ones, over
    all real inputs of size at most 1.

    Args:
        model: A covered model of one real input channel.
        length: The number of positions of the row.
        layer: The layer's number, from 0.
        head: The head's number in its layer.
        lags: The lags to which the head is expected to attend.
    """
    ar = Arithmetic("real", budget=0, symbols=length)
    x = embed_inputs(model, box(np.zeros((1, length, 1)), np.ones((length, 1))), ar)
    high = attention_bounds(model, x, layer, ar)[1][0, head]
    rest = np.delete(high, [length - 1 - lag for lag in lags if 0 <= lag < length])
    return float(rest.sum() * UP)


def _looks(
    block: Any, seen: Affine, ar: Arithmetic, *, last_only: bool, scores: Affine | None
) -> tuple[Any, Any, Bool[np.ndarray, "query key"]]:
    """Return the least and largest attention ``[cell, head, query, key]``, and where a query may
    attend."""
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
    seen = apply_norm(block.ln1, x, ar)
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


def apply_norm(norm: Any, x: Affine, ar: Arithmetic) -> Affine:
    """Apply LayerNorm, RMSNorm or no norm.

    y = (x − mean) s with s = 1/√(mean square + ε) in [a, b]. There are two ways to bound it. Either
    the middle of [a, b] scales the form, and the half width times the largest |x − mean| is noise.
    Or s is a form itself, by :func:`inverse_root` of the mean square, and the rest is a product of
    two deviations: this is better on small cells, where s follows x. The narrower result is
    returned. The square root and quotient round like n + 8 operations on y. If the squares may
    overflow, the bound is infinite.
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
    if len(x.generators):
        found = _narrower(found, _divide_by_rms(x, norm.eps, low, high, ar))
    if norm.w is not None:
        found = scale(found, weights(norm.w), ar)
    return found if norm.b is None else add(found, exactly(weights(norm.b)), ar)


def _divide_by_rms(x: Affine, eps: float, least: Array, most: Array, ar: Arithmetic) -> Affine:
    """Return x/√(mean x² + ε) with the scale as a form, which lies in [least, most]."""
    n, real = x.shape[-1], Arithmetic("real", symbols=ar.symbols, budget=ar.budget)
    squares = scale(dot(x, x, real), np.full(x.shape[:-1], 1.0 / n), real)
    lost = float(ar.error(2, np.zeros(())))  # what underflows
    radius = (squares.radius + lost + (squares.magnitude + eps) * 2.0**-48) * UP
    squares = Affine(squares.centre + eps, squares.generators, radius)
    known = np.isfinite(most) & (least > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (end[..., None] for end in squares.bounds())
        low = np.maximum(low, np.where(known, most, 1.0) ** -2.0 * (1 - 2.0**-40))
        high = np.minimum(high, np.where(known, least, 1.0) ** -2.0 * (1 + 2.0**-40))
    slope, shift, rest = inverse_root(low, np.maximum(low, high))
    line = add(scale(squares.reshape(*low.shape), slope, real), exactly(shift), real)
    factor = fresh(line, rest, real)
    gx, gs = (pad_symbols(form.generators, real.symbols) for form in (x, factor))
    noise = x.radius * np.abs(factor.centre) + factor.radius * np.abs(x.centre)
    noise = noise + x.deviation * factor.deviation + ar.error(n + 8, x.magnitude * most * UP)
    ar.symbols, ar.multiplications = real.symbols, ar.multiplications + real.multiplications
    radius = (noise + x.magnitude * factor.magnitude * 2.0**-48) * UP
    found = x.centre * factor.centre, gx * factor.centre + gs * x.centre
    return Affine(*found, np.where(known, radius, np.inf))


def _narrower(a: Affine, b: Affine) -> Affine:
    """Return, in each row, the narrower of two forms of the same numbers."""
    own, other = (np.nan_to_num(form.deviation.sum(-1), nan=np.inf) for form in (a, b))
    first, n = (own <= other)[..., None], max(len(a.generators), len(b.generators))
    generators = np.where(first, pad_symbols(a.generators, n), pad_symbols(b.generators, n))
    return Affine(
        np.where(first, a.centre, b.centre), generators, np.where(first, a.radius, b.radius)
    )


def _inverse_scale(x: Affine, eps: float, ar: Arithmetic) -> tuple[Any, Any]:
    """Return bounds on 1/√(mean x² + ε), ``[…, 1]``; 0 and infinity if the squares may overflow."""
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
