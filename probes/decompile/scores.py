"""What a head's scores are made of: a sum over pairs of named sources, and how much each pair says.

    score(i, j) = Σ_{s, t} (u_s(i) W_Q) · (u_t(j) W_K) / √d_head,
    u_s = what source s adds to the stream, mean taken out, divided by the LayerNorm's scale, times
          its gain

Sources are the token's embedding, the position's, what each earlier head and FFN wrote, and
constants (biases and the norm's shift). Scores are taken without their mean over the keys that a
query sees, which the softmax does not notice; the *share* of a pair is its covariance with the
whole score over the score's variance, so that shares of all pairs add up to ``explained``. That is
1 where scores are products of queries and keys and nothing else; less where a model adds biases of
its own to them. The scale is each position's real one: what it costs to freeze it is measured in
:mod:`probes.decompile.norms`.

A share says what the scores vary with, not that the head's task needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.attribution.residual_decomposition import residual_decomposition
from interp.attribution.unembedding import norm_gain, norm_shift, takes_mean_out
from interp.interventions.components import Component
from interp.rasp.evaluation import NONE
from interp.run import Site
from probes.decompile.decisions import activations, inputs_of
from probes.decompile.primitives import Primitive, ideal
from probes.decompile.rows import Rows

__all__ = ["HeadScore", "score_pairs"]

_SHOWN = 5


@dataclass(frozen=True)
class HeadScore:
    """A head's score as a sum over pairs, and its pattern beside a primitive's.

    Attributes:
        head: Which.
        spread: Standard deviation of its scores over the keys of a query; near 0 for even ones.
        pairs: (source of the query, source of the key, share of the variance), the largest first.
        explained: Share of the variance that all pairs together explain.
        pattern: Share of the pattern's squared distance from an even one that the primitive's
            pattern takes away; NaN for a primitive that is even itself. Below 0 it is further away.
        overlap: Share of the attention that the primitive's pattern shares.
    """

    head: Component
    spread: float
    pairs: tuple[tuple[str, str, float], ...]
    explained: float
    pattern: float
    overlap: float


def score_pairs(model: Any, rows: Rows, head: Component, primitive: Primitive) -> HeadScore:
    """Take a head's scores apart, and measure what a primitive says of its pattern.

    Args:
        model: Hooked; heads without ``W_Q`` and ``W_K`` have no pairs.
        rows: A few dozen; queries are the asked positions.
        head: Which.
        primitive: What stands in for it.
    """
    sites = [Site(head.layer, kind, head.head) for kind in ("attn_scores", "pattern")]
    cache = activations(model, rows, sites)
    scores, own = (cache[site].double().numpy() for site in sites)
    n = rows.tokens.shape[1]
    seen = np.tril(np.ones((n, n), dtype=bool)) & (rows.tokens != NONE)[:, None, :]
    seen = seen & rows.asked[:, :, None] & np.isfinite(scores)
    whole = _centred(scores, seen)
    variance = float((whole[seen] ** 2).sum())
    shares = _shares(model, rows, head, whole, seen, variance)
    order = sorted(shares, key=lambda pair: -abs(shares[pair]))[:_SHOWN]
    spread = float(np.sqrt(variance / max(seen.sum(), 1)))
    pattern, overlap = _patterns(own, ideal(primitive, rows), seen)
    return HeadScore(
        head,
        spread,
        tuple((*pair, shares[pair]) for pair in order),
        float(sum(shares.values())) if shares else float("nan"),
        pattern,
        overlap,
    )


def _shares(
    model: Any,
    rows: Rows,
    head: Component,
    whole: Float[np.ndarray, "row query key"],
    seen: Bool[np.ndarray, "row query key"],
    variance: float,
) -> dict[tuple[str, str], float]:
    """(source of the query, source of the key) → share. Constants of the key count too: where the
    norm divides them by a scale, they depend on the key."""
    if variance <= 0 or getattr(model, "W_Q", None) is None:
        return {}
    read = _sources(model, rows, head.layer)
    width = model.W_Q.shape[-1] ** 0.5
    sides = []
    for weight, bias in ((model.W_Q, model.b_Q), (model.W_K, model.b_K)):
        side = {
            name: u @ weight[head.layer, head.head].detach().double() for name, u in read.items()
        }
        constant = bias[head.layer, head.head].detach().double()
        side["constants"] = side["constants"] + constant
        sides.append(side)
    found = {}
    for query, q in sides[0].items():
        for key, k in sides[1].items():
            part = _centred((q @ k.transpose(1, 2) / width).cpu().numpy(), seen)
            found[query, key] = float((part[seen] * whole[seen]).sum()) / variance
    return found


def _sources(model: Any, rows: Rows, layer: int) -> dict[str, Tensor]:
    """Name → what it is to the head's queries and keys, ``[row, pos, d_model]``."""
    parts = residual_decomposition(model, inputs_of(rows), layer)
    if str(model.cfg.normalization_type or "") == "":
        read = dict(parts)
        shift: Tensor | None = None
    else:
        site, norm = Site(layer, "ln1.hook_scale"), model.blocks[layer].ln1
        scale = activations(model, rows, [site])[site]
        gain, shift = norm_gain(norm), norm_shift(norm)
        read = {}
        for label, part in parts.items():
            flat = part - part.mean(-1, keepdim=True) if takes_mean_out(model) else part
            read[label] = flat / scale.to(flat) * (1.0 if gain is None else gain.double())
    constants = read.pop("bias", torch.zeros_like(next(iter(read.values()))))
    if shift is not None:
        constants = constants + shift.double()
    return {_named(label): part for label, part in read.items()} | {"constants": constants}


def _named(label: str) -> str:
    layer, _, rest = label.partition("_")
    if rest == "mlp_out":
        return f"what L{layer} FFN wrote"
    return {"embed": "token", "pos_embed": "position"}.get(label, f"what {label} wrote")


def _centred(
    values: Float[np.ndarray, "row query key"], seen: Bool[np.ndarray, "row query key"]
) -> NDArray[np.float64]:
    """Values less their mean over the keys that each query sees; 0 elsewhere."""
    known = np.where(seen, values, 0.0)
    mean = known.sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
    return np.asarray(np.where(seen, known - mean, 0.0))


def _patterns(
    own: Float[np.ndarray, "row query key"],
    other: Float[np.ndarray, "row query key"],
    seen: Bool[np.ndarray, "row query key"],
) -> tuple[float, float]:
    queries = seen.any(-1)
    even = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
    far = float(((other - even)[queries] ** 2).sum())
    base = float(((own - even)[queries] ** 2).sum())
    explained = 1 - float(((own - other)[queries] ** 2).sum()) / base if base > 0 else float("nan")
    overlap = float(np.minimum(own, other)[queries].sum(-1).mean())
    return (explained if far > 1e-9 else float("nan")), overlap
