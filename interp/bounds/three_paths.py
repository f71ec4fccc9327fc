"""The three paths of a one-layer, one-head, attention-only model, as tables over tokens.

At the last position, with query token q and tokens k_1 … k_K (k_K = q), the logit of c is

    D_q(c) + Σ_p A_p O_p(k_p, c),    A_p = e_p / Σ e,   e_p = e^{s_q(k_p, p)}

with D the direct path, s the QK path, O the OV path. The logit of m exceeds that of c exactly when

    Σ_p f_p > 0,    f_p = e_p(k_p) [D_q(m) − D_q(c) + O_p(k_p, m) − O_p(k_p, c)]

because the softmax's denominator is positive: a sum over positions of functions of one token each.
The tables are exact up to rounding. That rounding, and what evaluation in the model's dtype can add
to any logit, is ``slack``: if it is subtracted from every bracket, ``Σ f_p > 0`` is sufficient with
all rounding.

Not for models with more layers, heads, an FFN or a norm: their logits are no such sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import (
    DTYPES,
    EXP,
    UP,
    Affine,
    Arithmetic,
    add,
    dot,
    exactly,
    linear,
    scale,
)
from interp.bounds.attention import linear_heads, score_forms, weights
from interp.bounds.network import entry_stream, unmet

Array = Float64[np.ndarray, "..."]

LEAST = 1e-280
"""A sum must exceed this to count as positive. Terms that underflow to 0 in float64 are together
worth less."""

_LARGEST = 2.0**100
"""Largest difference of two logits for which bounds are given. For larger ones the slack is
infinite, so that nothing is proved."""


@dataclass(frozen=True)
class Tables:
    """A model's logits, split into what comes along each of three paths.

    Attributes:
        e: e^{s} up to a factor for each query, ``[query token, position, token]``, at most 1.
        ov: The OV path O, ``[position, token, logit]``.
        direct: The direct path D, ``[query token, logit]``.
        slack: The number to subtract from every difference of logits, for rounding of the tables
            and of the model.
        real: The part of ``slack`` that is needed for the model as a real function.
        arithmetic: The dtype whose evaluation ``slack`` covers; ``real`` if it covers none.
        scores: The scores s themselves.
        work: The number of multiplications that computed the tables.
    """

    e: Array
    ov: Array
    direct: Array
    slack: float
    real: float
    arithmetic: str
    scores: Array
    work: int

    @property
    def vocabulary(self) -> int:
        """The number of tokens v."""
        return len(self.direct)

    @property
    def length(self) -> int:
        """The number of positions K."""
        return len(self.ov)


def not_three_paths(model: Any) -> str:
    """Return why a model does not consist of the three paths; empty if it does."""
    spec = model.spec
    needed = {
        "one layer": spec.n_layers == 1,
        "one head": spec.heads == (1,) * spec.n_layers,
        "no FFN": not any(spec.ffn_widths) and not spec.input_ffn,
        "no norm": spec.norm == "none",
        "a softmax": spec.normalizer == "softmax",
        "a residual stream": spec.residual,
        "no b·I": not spec.identity_ov,
        "a position that sees itself": not spec.mask_self,
        "token inputs": spec.input == "tokens" and spec.d_in == spec.d_out,
    }
    return unmet("the three paths need", needed)


def tables_of(model: Any, length: int) -> Tables:
    """Compute the tables of a model for rows of ``length`` tokens."""
    ar, v = Arithmetic("real"), model.spec.d_in
    if list(model.blocks[0].attn.terms.keys()) == ["dot"]:
        q, k_token, k_place = queries_and_keys(model, length, ar)
        to_token, to_place = (
            dot(q.reshape(v, 1, -1), k.reshape(1, *k.shape), ar) for k in (k_token, k_place)
        )
        found = add(to_place.reshape(v, length, 1), to_token.reshape(v, 1, v), ar)
    else:
        found = _scores(model, _tokens(model, length, ar), ar).reshape(v, length, v)
    s = found.centre
    e = np.exp(s - s.max((1, 2), keepdims=True))
    return _finish_tables(model, length, e, s, float(found.radius.max()), ar)


def queries_and_keys(model: Any, length: int, ar: Arithmetic) -> tuple[Affine, Affine, Affine]:
    """Return the scaled q of the last token, ``[token, d]``, and what token and position add to
    k."""
    attn, token, place = model.blocks[0].attn, *_parts_of(model, length)
    last = add(token, place[-1:], ar)
    q = linear_heads(last[:, None], attn.W_Q, attn.b_Q, ar)[:, 0, 0]
    k_token = linear_heads(token[:, None], attn.W_K, attn.b_K, ar)[:, 0, 0]
    k_place = linear(place, weights(attn.W_K)[0], None, ar)
    return scale(q, np.asarray(float(attn.terms["dot"].scale)), ar), k_token, k_place


def _finish_tables(
    model: Any, length: int, e: Array, scores: Array, off: float, ar: Arithmetic
) -> Tables:
    """Compute the other two paths and the slack; scores have an error of at most ``off``."""
    attn, token, place = model.blocks[0].attn, *_parts_of(model, length)
    unembed, w_o = weights(model.W_U), weights(attn.W_O)[0]
    values = linear_heads(token[:, None], attn.W_V, attn.b_V, ar)[:, 0, 0]
    of_token = linear(linear(values, w_o, None, ar), unembed, None, ar)
    values = linear(place, weights(attn.W_V)[0], None, ar)
    of_place = linear(linear(values, w_o, None, ar), unembed, None, ar)
    v, logits = of_token.shape
    ov = add(of_place.reshape(length, 1, logits), of_token.reshape(1, v, logits), ar)
    bias = linear(exactly(weights(attn.b_O)[None]), unembed, weights(model.b_U), ar)
    direct = add(linear(add(token, place[-1:], ar), unembed, None, ar), bias, ar)
    # A score that is off by δ makes its weight off by a factor e^δ, within 1 ± 2δ. The last term
    # is for sums and products of the tables themselves, here.
    largest = 2 * float(np.abs(ov.centre).max() + np.abs(direct.centre).max())
    slack = 2 * float(ov.radius.max() + direct.radius.max())
    slack += (2 * off + 2.0**-39) * largest
    evaluation = 2 * evaluation_error(model, length, largest)
    covered = evaluation < largest / 100
    if largest > _LARGEST:
        slack = np.inf
    real = slack * UP
    slack = (slack + (evaluation if covered else 0.0)) * UP
    arithmetic = model.spec.dtype if covered else "real"
    found = (e, ov.centre, direct.centre, slack, real, arithmetic, scores)
    return Tables(*found, ar.multiplications)


def _parts_of(model: Any, length: int) -> tuple[Affine, Affine]:
    """Return what token and position add to the stream, ``[token, d_model]`` and ``[place,
    d_model]``."""
    table = weights(model.embed.W_E)
    if model.pos_embed is None:
        return exactly(table), exactly(np.zeros((length, table.shape[1])))
    return exactly(table), exactly(weights(model.pos_embed.W_pos)[:length])


def _tokens(model: Any, length: int, ar: Arithmetic) -> Affine:
    """Return the stream of every token at every position, ``[token, pos, d_model]``."""
    table = weights(model.embed.W_E)
    return entry_stream(model, exactly(np.repeat(table[:, None], length, axis=1)), ar)


def _scores(model: Any, x: Affine, ar: Arithmetic) -> Affine:
    """Return s for every query token and every (position, token), ``[query token, both]``."""
    v, length, width = x.shape
    moved = (np.moveaxis(part, -3, -2) for part in (x.centre, x.generators, x.radius))
    keys, last = Affine(*moved).reshape(1, length * v, width), x[:, -1]
    query = Affine(last.centre[None], last.generators[:, None], last.radius[None])
    lags = np.tile(np.repeat(length - 1 - np.arange(length), v), (v, 1))
    return score_forms(model.blocks[0].attn, query, keys, lags, ar)[0, 0]


def evaluation_error(model: Any, length: int, largest: float) -> float:
    """Return the largest difference of a logit computed in the model's dtype from the real one.

    Scores with an error of at most δ, a maximum subtracted, e^x, a sum and a quotient change each
    weight by a factor within 1 ± θ, which changes a logit by θ times the ``largest`` difference in
    O. Everything after the softmax is rounded too: values, their mean, W_O, the sum with the stream
    and the unembedding, each adding γ_n of its terms' sizes, the largest over all tokens.
    """
    ar, attn = Arithmetic(model.spec.dtype), model.blocks[0].attn
    u = DTYPES[model.spec.dtype][0]
    x = _tokens(model, length, ar)
    scores = _scores(model, x, ar)
    wrong = 2 * float(scores.radius.max() + 8 * u * scores.magnitude.max())
    weights_off = float(ar.error(length + 2 * EXP + 16, np.ones(())))
    theta = np.expm1(wrong) + weights_off if wrong < 1 else np.inf
    values = linear_heads(x, attn.W_V, attn.b_V, ar)[:, :, 0]
    size = values.magnitude.max((0, 1))
    off = values.radius.max((0, 1)) + ar.error(length + 4, (1 + theta) * size)
    size, off = _step(size, off, weights(attn.W_O)[0], weights(attn.b_O), ar)
    off = off + x.radius.max((0, 1))
    size = size + x.magnitude.max((0, 1)) + off
    _, off = _step(size, off + 2 * u * size, weights(model.W_U), weights(model.b_U), ar)
    return float((off.max() + theta * largest) * UP)


def _step(size: Array, off: Array, w: Array, b: Array, ar: Arithmetic) -> tuple[Array, Array]:
    """Return the sizes and errors after x W + b."""
    sizes = (size + off) @ np.abs(w) + np.abs(b)
    return sizes, off @ np.abs(w) + ar.error(len(w) + 2, sizes)
