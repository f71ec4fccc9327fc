"""The three paths of a one-layer, one-head, attention-only model, as tables over tokens.

At the last position, with query token q and tokens k_1 … k_K (k_K = q), the logit of c is

    D_q(c) + Σ_p A_p O_p(k_p, c),    A_p = e_p / Σ e,   e_p = e^{s_q(k_p, p)}

D the direct path, s the QK path, O the OV path. c is behind m exactly when

    Σ_p f_p > 0,    f_p = e_p(k_p) [D_q(m) − D_q(c) + O_p(k_p, m) − O_p(k_p, c)]

because the softmax's denominator is positive: a sum over positions of functions of one token each.
The tables hold up to rounding; that, and what evaluation in the model's dtype can add to any logit,
is ``slack``: taking it off every bracket makes ``Σ f_p > 0`` sufficient, whatever is rounded.

Not for models with more layers, heads, an FFN or a norm: their logits are no such sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import Affine, exactly, linear
from interp.bounds.network import entered
from interp.bounds.rounding import DTYPES, EXP, UP, Arithmetic
from interp.bounds.scores import linear_heads, score_forms, weights

__all__ = ["LEAST", "Tables", "evaluation_error", "not_three_paths", "tables_of"]

Array = Float64[np.ndarray, "..."]

LEAST = 1e-280
"""Sums must exceed it: more than terms that underflow can be worth."""


@dataclass(frozen=True)
class Tables:
    """The three paths.

    Attributes:
        e: e^{s} up to a factor for each query, ``[query token, position, token]``, at most 1.
        ov: O, ``[position, token, logit]``.
        direct: D, ``[query token, logit]``.
        slack: Taken off every difference of logits: rounding of the tables and of the model.
        real: The part of ``slack`` that the model as a real function needs.
        arithmetic: Whether ``slack`` covers evaluation in the model's dtype.
        scores: s itself.
        work: Multiplications that made the tables.
        raised: ``[query token]``, factor ≥ 1 by which a weight that does harm may be too small
            beside one that does good; 1 where ``e`` is exact.
    """

    e: Array
    ov: Array
    direct: Array
    slack: float
    real: float
    arithmetic: str
    scores: Array
    work: int
    raised: Array

    @property
    def vocabulary(self) -> int:
        """v."""
        return len(self.direct)

    @property
    def length(self) -> int:
        """K."""
        return len(self.ov)


def not_three_paths(model: Any) -> str:
    """Why a model is not of the three paths; empty if it is."""
    spec = model.spec
    needed = {
        "one layer": spec.n_layers == 1 and spec.heads == (1,),
        "no FFN": not any(spec.ffn_widths) and not spec.input_ffn,
        "no norm": spec.norm == "none",
        "a softmax": spec.normalizer == "softmax",
        "a residual stream": spec.residual,
        "no b·I": not spec.identity_ov,
        "a position that sees itself": not spec.mask_self,
        "token inputs": spec.input == "tokens" and spec.d_in == spec.d_out,
    }
    lacking = [name for name, holds in needed.items() if not holds]
    return f"the three paths need {', '.join(lacking)}" if lacking else ""


def tables_of(model: Any, length: int) -> Tables:
    """The tables of a model for rows of ``length`` tokens."""
    ar, block, v = Arithmetic("real"), model.blocks[0], model.spec.d_in
    x = _tokens(model, length, ar)
    scores = _scores(model, x, ar)
    s = scores.centre.reshape(v, length, v)
    s = s - s.max((1, 2), keepdims=True)
    values = linear_heads(x, block.attn.W_V, block.attn.b_V, ar)[:, :, 0]
    unembed = weights(model.W_U)
    ov = linear(linear(values, weights(block.attn.W_O)[0], None, ar), unembed, None, ar)
    bias = weights(model.b_U) + weights(block.attn.b_O) @ unembed
    direct = linear(x[:, -1], unembed, bias, ar)
    table = np.ascontiguousarray(np.moveaxis(ov.centre, 1, 0))
    # A score that is off by δ makes its weight off by a factor e^δ, within 1 ± 2δ. The last term
    # is for sums and products of the tables themselves, here.
    largest = 2 * float(np.abs(table).max() + np.abs(direct.centre).max())
    slack = 2 * float(ov.radius.max() + direct.radius.max())
    slack += (2 * float(scores.radius.max()) + 2.0**-39) * largest
    evaluation = 2 * evaluation_error(model, length, largest)
    covered = evaluation < largest / 100
    if largest > 2.0**128:  # then weights that underflow here may matter (LEAST)
        slack = np.inf
    real = slack * UP
    slack = (slack + (evaluation if covered else 0.0)) * UP
    arithmetic = model.spec.dtype if covered else "real"
    found = (np.exp(s), table, direct.centre, slack, real, arithmetic, s)
    return Tables(*found, ar.multiplications, np.ones(v))


def _tokens(model: Any, length: int, ar: Arithmetic) -> Affine:
    """Every token at every position, ``[token, pos, d_model]``."""
    table = weights(model.embed.W_E)
    return entered(model, exactly(np.repeat(table[:, None], length, axis=1)), ar)


def _scores(model: Any, x: Affine, ar: Arithmetic) -> Affine:
    """s for every query token and every (position, token), ``[query token, both]``."""
    v, length, width = x.shape
    moved = (np.moveaxis(part, -3, -2) for part in (x.centre, x.generators, x.radius))
    keys, last = Affine(*moved).reshape(1, length * v, width), x[:, -1]
    query = Affine(last.centre[None], last.generators[:, None], last.radius[None])
    lags = np.tile(np.repeat(length - 1 - np.arange(length), v), (v, 1))
    return score_forms(model.blocks[0].attn, query, keys, lags, ar)[0, 0]


def evaluation_error(model: Any, length: int, largest: float) -> float:
    """Most by which a logit computed in the model's dtype differs from the real one.

    Scores that are off by δ at most, a maximum subtracted, e^x, a sum and a quotient change each
    weight by a factor within 1 ± θ, which moves a logit by θ times the ``largest`` difference that
    O makes. The rest is rounded after the softmax: values, their mean, W_O, the sum with the
    stream and the unembedding, each adding γ_n of its terms' sizes, the largest over all tokens.
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
    """Sizes and errors after x W + b."""
    sizes = (size + off) @ np.abs(w) + np.abs(b)
    return sizes, off @ np.abs(w) + ar.error(len(w) + 2, sizes)
