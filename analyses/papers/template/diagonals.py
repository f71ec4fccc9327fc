"""Diagonals of small models' circuits in memory, in the residual basis and through the embedding.

For each head the circuits QK = W_Q W_Kᵀ/√d_head and OV = W_V W_O, and with identity scalars the
effective ones QK+aI and OV+bI (`template` §2.2), as dense matrices M [n, n]:

    trace_share           tr M / (√n ‖M‖)                its sign is the diagonal's
    diagonal_energy       Σ M_ii² / Σ_{i≠j} M_ij²
    identity_coefficient  a* = tr M / n                  the multiple of I nearest to M
    identity_residual     ‖M − a*I‖ / ‖M‖                1 where no part of M is diagonal in I's way

in the ``residual`` basis (n = d_model), and for ``symbols`` through the embedding, W_E M W_Eᵀ (QK)
and W_E M W_U (OV): a on I is there a·W_E W_Eᵀ. The null has Gaussian factors of the head's shapes
and norms and no scalar, seen through the same embedding: a thousand draws, pooled over the heads
of a layer, which are exchangeable under it (norms scale out). p is two-sided, and never below
1/(10 · draws).

For checkpoints of any size and more metrics use :mod:`interp.weights.weight_table`. A diagonal says
that a head would match or copy if nothing else reached it; whether it does is a matter of patterns
and effects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from prooflens.errors import Problems
from prooflens.stats import head_table, score_row
from prooflens.weights import WeightNull

__all__ = ["DIAGONAL_METRICS", "diagonal_table", "effective_circuits"]

DIAGONAL_METRICS = (
    "trace_share",
    "diagonal_energy",
    "identity_coefficient",
    "identity_residual",
)
_SCALES = "identity_coefficient"
_AT_ONCE = 100

Matrices = Float[Tensor, "stack n n"]


@torch.no_grad()
def effective_circuits(
    model: Any, layer: int, *, symbols: slice | None = None
) -> dict[str, Float[Tensor, "head n n"]]:
    """The circuits of a layer's heads as dense matrices.

    Args:
        model: A :class:`~interp.models.transformer.SequenceTransformer`; norms are not folded.
        layer: The layer, counted from 0.
        symbols: Token ids to look through the embedding at; None is the residual basis.

    Returns:
        ``QK`` (if scores use it), ``OV``, and ``QK+aI``, ``OV+bI`` where the model has scalars.
        Through the embedding OV circuits are there only if outputs are tokens too.
    """
    attn = model.blocks[layer].attn
    into = None if symbols is None else model.embed.W_E[symbols].double()
    unit = torch.eye(attn.W_V.shape[1], dtype=torch.float64)[None]
    found: dict[str, Tensor] = {}
    scores = 0.0 * unit.expand(len(attn.W_V), -1, -1)
    if model.spec.uses_keys:
        scores = attn.terms["dot"].scale * attn.W_Q.double() @ attn.W_K.double().mT
        found["QK"] = scores
    found["OV"] = attn.W_V.double() @ attn.W_O.double()
    if model.spec.identity_qk:
        term = attn.terms["identity"]
        found["QK+aI"] = scores + (term.multiplier * term.a.double())[:, None, None] * unit
    if model.spec.identity_ov:
        found["OV+bI"] = found["OV"] + attn.effective_b.double()[:, None, None] * unit
    if into is None:
        return found
    seen = {n: into @ m @ into.T for n, m in found.items() if n.startswith("QK")}
    if model.spec.d_in == model.spec.d_out:
        out = model.unembed.W_U[:, symbols].double()
        seen |= {n: into @ m @ out for n, m in found.items() if n.startswith("OV")}
    return seen


def diagonal_table(
    model: Any, *, symbols: slice | None = None, draws: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """The diagonal metrics of every head's circuits with their nulls, as a head table.

    Args:
        model: A :class:`~interp.models.transformer.SequenceTransformer`.
        symbols: Token ids; with them the rows through the embedding (target ``symbols``) follow
            those of the residual basis (target ``residual``).
        draws: Random heads a layer; fewer than 1000 are for trying things out.
        seed: Seed of the random draws.

    Returns:
        One row a head, circuit, basis and metric.

    Raises:
        ArgumentError: for fewer than two draws, or symbols of a model without token input.
    """
    problems = Problems("diagonal_table")
    problems.need(draws >= 2, "draws", "must be at least 2", draws, "a spread needs two")
    tokens = symbols is None or model.spec.input == "tokens"
    problems.need(tokens, "symbols", "need a model with token input", symbols, "leave them out")
    problems.raise_if_any()
    bases: list[slice | None] = [None] if symbols is None else [None, symbols]
    rows = [
        row
        for layer in range(model.spec.n_layers)
        for basis in bases
        for row in _rows(model, layer, basis, draws, seed)
    ]
    return head_table(rows)


def _rows(
    model: Any, layer: int, symbols: slice | None, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    circuits = effective_circuits(model, layer, symbols=symbols)
    random = _random(model, layer, symbols, draws, seed)
    target = "residual" if symbols is None else "symbols"
    for name, matrices in circuits.items():
        kind = name[:2]
        norms = _norms(model, layer, kind)
        drawn = random[kind]
        for metric, scores in _measure(matrices).items():
            for head in range(model.spec.heads[layer]):
                score = float(scores[head])
                factor = float(norms[head]) if metric == _SCALES else 1.0
                null = WeightNull.of(drawn[metric].numpy() * factor)
                yield score_row(
                    metric,
                    score,
                    null.against(score),
                    component="head",
                    layer=layer,
                    head=head,
                    circuit=name,
                    target=target,
                )


def _measure(m: Matrices) -> dict[str, Float[Tensor, " stack"]]:
    n = m.shape[-1]
    diagonal = m.diagonal(dim1=-2, dim2=-1)
    trace, energy = diagonal.sum(-1), m.square().sum((-2, -1))
    own = diagonal.square().sum(-1)
    share = torch.where(energy > 0, trace / (n * energy).sqrt(), 0.0)
    return {
        "trace_share": share,
        "diagonal_energy": own / (energy - own),
        "identity_coefficient": trace / n,
        "identity_residual": (1 - share.square()).clamp_min(0).sqrt(),
    }


def _norms(model: Any, layer: int, kind: str) -> Float[Tensor, " head"]:
    """Return the product ‖left‖·‖right‖ of the norms of each head's factors, with the scale of the
    scores."""
    attn = model.blocks[layer].attn
    if kind == "OV":
        return (_size(attn.W_V) * _size(attn.W_O)).detach()
    if not model.spec.uses_keys:
        return torch.zeros(len(attn.W_V))
    size: Tensor = (attn.terms["dot"].scale * _size(attn.W_Q) * _size(attn.W_K)).detach()
    return size


def _size(stack: Tensor) -> Tensor:
    return stack.double().square().sum((-2, -1)).sqrt()


def _random(
    model: Any, layer: int, symbols: slice | None, draws: int, seed: int
) -> dict[str, dict[str, Float[Tensor, " draw"]]]:
    """Return the metrics of products of random Gaussian factors of norm 1, in the same basis as the
    circuits."""
    d_model, width = model.spec.d_model, model.spec.head_widths[layer]
    rng = np.random.default_rng([seed, layer, d_model, width])
    found: dict[str, list[dict[str, Tensor]]] = {}
    for start in range(0, draws, _AT_ONCE):
        count = min(_AT_ONCE, draws - start)
        factors = torch.from_numpy(rng.standard_normal((2, count, d_model, width)))
        factors = factors / factors.square().sum((-2, -1), keepdim=True).sqrt()
        for kind, matrices in _factor_products(model, factors, symbols).items():
            found.setdefault(kind, []).append(_measure(matrices))
    return {
        kind: {metric: torch.cat([part[metric] for part in parts]) for metric in DIAGONAL_METRICS}
        for kind, parts in found.items()
    }


def _factor_products(
    model: Any, factors: Float[Tensor, "side draw d_model d_head"], symbols: slice | None
) -> dict[str, Matrices]:
    if symbols is None:
        product = factors[0] @ factors[1].mT
        return {"QK": product, "OV": product}
    into = model.embed.W_E[symbols].detach().double()
    left = into @ factors[0]
    seen = {"QK": left @ (into @ factors[1]).mT}
    if model.spec.d_in == model.spec.d_out:
        out = model.unembed.W_U[:, symbols].detach().double()
        seen["OV"] = left @ (factors[1].mT @ out)
    return seen
