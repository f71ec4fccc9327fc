"""The truncated proper orthogonal decomposition (POD) as weights, with its error (`coupling` §4.2).

    input     x, φ_1(x) … φ_m(x), ψ_1(x) … ψ_m(x): supplied by the task (``features``), or computed
              by the input FFN, which interpolates them between N equal knots, one ReLU each
    head      W_Q picks σ_k φ_k, W_K picks ψ_k, m = d_head: scores Σ_{k ≤ m} σ_k φ_k(u) ψ_k(v)
              W_V, W_O carry x; no residual, no second FFN (F and f are the identity)

**Certificate.** Let Δ be the error of the scores. A softmax p ∝ e^a moves to e^{a+Δ} by at most
tanh(osc Δ / 4) in total variation (osc = max − min over the keys; tight for two blocks of keys), so
by at most tanh(‖Δ‖_∞ / 2), and a mean of x by that times the spread of x, here at most 1:

    |error| ≤ tanh(δ/2),   δ = Σ_{m < k ≤ r} σ_k sup|φ_k| sup|ψ_k| + interpolation + rounding.

Interpolation of φ_k costs e_k = sup|φ_k″| / (8N²) and never exceeds sup|φ_k|. There are two sharper
bounds: :func:`input_bound` for a given input, and :func:`mean_square_bound` over random ones. The
tail Σ_{k>m} σ_k² alone is *not* a bound, because a position also attends to itself, where Δ(u, u)
is a sum of squares.

At m ≥ r the error is rounding (and interpolation). At infinite rank δ is infinite, the certificate
only says |error| ≤ 1, and the two other bounds are more useful. The proof gives one model; a
trained one can do better at the same m, since it need not copy the best scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt, tanh
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.special import zeta
from torch import Tensor

from interp.errors import Problems, need
from interp.hooks.site import Site
from interp.models.ffn import FFN
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model
from interp.tasks.coupling import BASES, PodCoupling

KNOTS = 4096
_UNIT, _SINGLE = 2.0**-53, 2.0**-24


@dataclass(frozen=True)
class _Functions:
    """The basis of queries or of keys, and the coordinate of the residual stream where its
    functions start."""

    name: str
    start: int


def construct_pod(
    task: PodCoupling, m_h: int, *, n: int | None = None, knots: int = KNOTS
) -> Construction:
    """Build the POD of the task's coupling, truncated to scores of rank ``m_h``, as a float64
    model.

    Args:
        task: The task that the model computes. With ``features`` the bases are read from the input,
            exactly; otherwise the input FFN computes them.
        m_h: Width of the head, and rank of the scores.
        n: Width of the features (32 in the paper); coordinates that are not needed stay empty. By
            default the smallest, 1 + m_h, or 1 + 2 m_h if queries and keys have different bases.
        knots: Number of ReLUs with which the input FFN interpolates the basis functions.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """
    second = 1 if task.left == task.right else 1 + m_h
    sides, least = [_Functions(task.left, 1), _Functions(task.right, second)], second + m_h
    problems = Problems("construct_pod")
    problems.need(m_h >= 1, "m_h", "must be at least 1", m_h, "a head has a width")
    problems.need(knots >= 2, "knots", "must be at least 2", knots, "raise it")
    known = not task.features or m_h <= task.features
    rule = f"must be at most the task's features {task.features}"
    problems.need(known, "m_h", rule, m_h, "supply more, or none")
    rule = f"must be at least {least}, for x and the bases"
    problems.need(n is None or n >= least, "n", rule, n, "raise it, or leave it out")
    problems.raise_if_any()
    width = n or least
    model = zero_model(_spec(task, m_h, width, knots))
    with torch.no_grad():
        if task.features:
            _read_features(model, task, sides, m_h)
        else:
            model.embed.W_E[0, 0] = 1
            _write_interpolants(model, sides, m_h, knots)
        _write_head(model, task, sides, m_h)
        model.unembed.W_U[0, 0] = 1
    return Construction(
        name=f"constructed-{task.name}-{m_h}",
        task=task,
        model=model,
        mechanism=_mechanism(task, sides, m_h, width),
        certificate=_certificate(task, sides, m_h, knots, model),
    )


def input_bound(
    task: PodCoupling, m_h: int, x: Float[Tensor, "*batch pos"]
) -> Float64[Tensor, "*batch pos"]:
    """Return a bound on the error of the truncated POD at each position of given inputs.

    It is tanh(osc Δ(t, ·)/4) times the spread of x over the keys, and holds at any rank.
    Interpolation and rounding are not counted.
    """
    delta = task.coupling(x, x) - task.coupling(x, x, m_h)
    values = x.double()[..., None, :].expand_as(delta)
    if task.mask_self:
        itself = torch.eye(x.shape[-1], dtype=torch.bool)
        delta, values = (v.masked_fill(itself, torch.nan) for v in (delta, values))
    spans = [_spread(v) for v in (delta, values)]
    return torch.tanh(spans[0] / 4) * spans[1]


def mean_square_bound(task: PodCoupling, m_h: int) -> float:
    """Return an upper bound on the mean square error over independent uniform inputs: [(τ − 1)
    Σ_{m<k≤r} σ_k² + E Δ(u, u)²] / 4, without the last term if self-attention is masked.

    Raises:
        ArgumentError: for an infinite rank without masked self-attention; :func:`sigma_tail` sums
            the tail of an infinite rank.
    """
    others = (task.length - 1) * sigma_tail(task, m_h)
    if task.mask_self:
        return others / 4
    finite = task.rank != "infinite"
    need("mean_square_bound", finite, "task", "must have a finite rank", task.rank, "or mask self")
    rank = int(task.rank)
    basis = BASES[task.left if BASES[task.left].polynomial else task.right]
    nodes, weights = basis.quadrature(40 * rank + 100)  # enough for a product of unlike bases too
    u = torch.from_numpy(nodes)
    product = BASES[task.left].values(u, rank) * BASES[task.right].values(u, rank)
    diagonal = (product * task.sigma(rank))[:, m_h:].sum(-1).numpy()
    return (others + float(weights @ diagonal**2)) / 4


def sigma_tail(task: PodCoupling, m_h: int) -> float:
    """Return Σ_{k > m_h} σ_k², the mean square error of the scores between independent positions;
    in closed form (Hurwitz' zeta) at infinite rank."""
    if task.rank == "infinite":
        return float(zeta(2 * task.alpha, m_h + 1))
    return float((task.sigma(int(task.rank))[m_h:] ** 2).sum())


def _spread(values: Tensor) -> Tensor:
    high = values.nan_to_num(nan=-torch.inf).amax(-1)
    return high - values.nan_to_num(nan=torch.inf).amin(-1)


def _spec(task: PodCoupling, m_h: int, width: int, knots: int) -> TransformerSpec:
    return TransformerSpec(
        input="real",
        d_in=task.d_in,
        d_out=1,
        n_ctx=task.length,
        d_model=width,
        n_layers=1,
        n_heads=1,
        d_head=m_h,
        input_ffn=() if task.features else (knots,),
        causal=False,
        mask_self=task.mask_self,
        residual=False,
        dtype="float64",
    )


def _read_features(
    model: SequenceTransformer, task: PodCoupling, sides: list[_Functions], m_h: int
) -> None:
    model.embed.W_E[0, 0] = 1
    for channel, side in ((1, sides[0]), (1 + task.features, sides[1])):
        if side.start > 1 or side is sides[0]:
            for k in range(m_h):
                model.embed.W_E[channel + k, side.start + k] = 1


def _write_interpolants(
    model: SequenceTransformer, sides: list[_Functions], m_h: int, knots: int
) -> None:
    """Write the input FFN: x = relu(x), and f(x) ≈ f(0) + Σ_j (slope_j − slope_{j−1}) relu(x − j/N)
    on [0, 1]."""
    ffn = cast("FFN", model.input_ffn)
    place = torch.arange(knots + 1, dtype=torch.float64) / knots
    ffn.W_in[0] = 1
    ffn.b_in.copy_(-place[:-1])
    ffn.W_out[0, 0] = 1
    for side in dict.fromkeys(sides):
        values = BASES[side.name].values(place, m_h)
        slopes = values.diff(dim=0) * knots
        bends = slopes.diff(dim=0, prepend=torch.zeros(1, m_h, dtype=torch.float64))
        ffn.W_out[:, side.start : side.start + m_h] = bends
        ffn.b_out[side.start : side.start + m_h] = values[0]


def _write_head(
    model: SequenceTransformer, task: PodCoupling, sides: list[_Functions], m_h: int
) -> None:
    """Write the head. Scores are divided by √m_h, so the queries are multiplied by it."""
    attn, k = model.blocks[0].attn, torch.arange(m_h)
    attn.W_Q[0, sides[0].start + k, k] = task.sigma(m_h) * sqrt(m_h)
    attn.W_K[0, sides[1].start + k, k] = 1
    attn.W_V[0, 0, 0] = 1
    attn.W_O[0, 0, 0] = 1


def _mechanism(task: PodCoupling, sides: list[_Functions], m_h: int, width: int) -> Mechanism:
    """Return the directions of the task's latents that the head's rank includes."""
    axes = torch.eye(width, dtype=torch.float64)
    directions = {"x": axes[0]}
    for letter, side in zip(("phi", "psi"), sides, strict=True):
        for k in range(1, min(m_h, task.n_recorded) + 1):
            directions[f"{letter}[{k}]"] = axes[side.start + k - 1]
    parts = (Part("head", 0, 0, "coupling", "coupling"),)
    return Mechanism(parts, directions, dict.fromkeys(directions, Site(-1, "embed").name))


def _certificate(
    task: PodCoupling, sides: list[_Functions], m_h: int, knots: int, model: SequenceTransformer
) -> Certificate:
    domain = f"every input in [0, 1] of at most {task.length} positions"
    if task.rank == "infinite":
        told = " (no uniform bound at infinite rank but the spread of x: use input_bound)"
        return Certificate(1.0, {"spread of x": 1.0}, domain + told)
    rank, kept = int(task.rank), min(m_h, int(task.rank))
    sigma = task.sigma(rank).numpy()
    high = np.array(
        [[BASES[b].largest(k) for b in (task.left, task.right)] for k in range(1, rank + 1)]
    )
    bent = [
        [BASES[b].curvature(k) / (8 * knots**2) for b in (task.left, task.right)]
        for k in range(1, kept + 1)
    ]
    error = high[:kept] * _SINGLE if task.features else np.array(bent).reshape(kept, 2)
    parts = {
        "cut terms": float((sigma * high.prod(1))[kept:].sum()),
        "features": _products(sigma[:kept], high[:kept], error),
        "rounding of the scores": _products(
            sigma[:kept], high[:kept], _rounding(model, sides, high, kept)
        ),
        "rounding of the average": (task.length + 16) * 8 * _UNIT + _SINGLE,
    }
    delta = sum(parts[name] for name in list(parts)[:3])
    return Certificate(tanh(delta / 2) + parts["rounding of the average"], parts, domain)


def _products(
    sigma: Float64[np.ndarray, " k"],
    high: Float64[np.ndarray, "k side"],
    error: Float64[np.ndarray, "k side"],
) -> float:
    """Return a bound on Σ σ_k |φ̂_k ψ̂_k − φ_k ψ_k|, given the errors of the two sides."""
    cross = high[:, 0] * error[:, 1] + high[:, 1] * error[:, 0] + error.prod(1)
    return float((sigma * cross).sum())


def _rounding(
    model: SequenceTransformer,
    sides: list[_Functions],
    high: Float64[np.ndarray, "k side"],
    kept: int,
) -> Float64[np.ndarray, "kept side"]:
    """Return the error of each feature as computed, including the dot product's own rounding.

    The latter is the unit roundoff times the number of terms times their sizes.
    """
    own = high[:kept] * (kept + 4) * _UNIT
    if model.input_ffn is None:
        return own
    sizes = model.input_ffn.W_out.detach().abs().sum(0).numpy()
    terms = len(model.input_ffn.W_out) + 4
    columns = np.stack([sizes[side.start : side.start + kept] for side in sides], axis=1)
    return own + terms * _UNIT * (columns + high[:kept])
