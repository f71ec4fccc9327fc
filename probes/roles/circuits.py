"""Roles of heads that are told by their weights: diagonal circuits through the embedding.

    symbol-equality   W_E (W_Q W_Kᵀ/√d_head + aI) W_Eᵀ ≈ c·I on the tokens in use, c > 0
    copying           W_E (W_V W_O + bI) W_U ≈ c·I on them, sign kept (negative: suppression)

A basis of the residual stream says nothing about either: in a rotated one the projector a·P is
a·QᵀPQ. Tokens are the basis that the head's job is stated in, so rows and columns are tokens that
the inputs hold; both means are taken out, since a softmax ignores what is constant along keys, and
a constant along queries, or an offset of all logits, relates no token to another.

    score = (tr M)² / (‖M‖² (n − 1))      the share of M's energy that c·I explains

Null: the columns of M are permuted (tokens relabelled). Then tr M has mean 0 and variance
‖M‖²/(n − 1) exactly, and a normal tail; p is not taken below 1/n!.

Cause: for equality, the output changes when the head may not attend to equal tokens; for copying,
when it is ablated. Norms between embedding and head, and all earlier layers, are left out of M: a
head that compares or copies what earlier layers wrote is not seen. So are rotations of queries and
keys (M is then the circuit at lag 0). Query heads that share keys and values each have their
group's. Fewer than four tokens tell nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import factorial, sqrt
from typing import Any

import torch
from jaxtyping import Bool, Float
from scipy.special import ndtr
from torch import Tensor

from interp.heads.classes import token_classes
from interp.heads.effects import Component, components
from probes.roles.attention import repeated_rows
from probes.roles.decision import Found, Test
from probes.roles.effects import Outputs

__all__ = ["CircuitFloors", "circuit_roles", "identity_share"]

_FEWEST = 4
_MOST = 512
_COMMON = 0.1
_WEIGHTS = ("W_E", "W_U", "blocks")


@dataclass(frozen=True)
class CircuitFloors:
    """The least that counts.

    Attributes:
        share: Of a circuit's energy that the identity explains.
        change: Of the output, as a share of its variance.
    """

    share: float = 0.5
    change: float = 0.1


def identity_share(circuit: Float[Tensor, "token token"]) -> tuple[float, float]:
    """Share of a token × token circuit's energy that c·I explains, signed as c; and p.

    Rows and columns are centred first. 0 and 1 for a circuit of nothing.
    """
    m = circuit.double()
    m = m - m.mean(0, keepdim=True)
    m = m - m.mean(1, keepdim=True)
    n, energy, trace = len(m), float(m.square().sum()), float(m.trace())
    if energy <= 1e-18 * max(float(circuit.double().square().sum()), 1e-300):
        return 0.0, 1.0
    share = trace * abs(trace) / (energy * (n - 1))
    p = float(ndtr(-abs(trace) * sqrt((n - 1) / energy)))
    return share, max(p, 1 / factorial(min(n, 100)))


def circuit_roles(
    model: Any,
    inputs: Tensor,
    scored: Bool[Tensor, "row pos"],
    *,
    floors: CircuitFloors | None = None,
    seed: int = 0,
) -> list[Found]:
    """Every head's circuits on the tokens of the inputs, tested.

    Args:
        model: With TransformerLens' weight names; one without a dot product has no QK circuit, and
            of one that lacks these names (a wrapped module) there is nothing to say.
        inputs: ``[row, pos]`` tokens; there is nothing to say about real inputs.
        scored: Where the output counts.
        floors: The least that counts.
        seed: Of the repeated rows.
    """
    if inputs.ndim != 2 or not all(hasattr(model, name) for name in _WEIGHTS):
        return []
    tokens = inputs[:, 1:].unique()[:_MOST]
    if len(tokens) < _FEWEST:
        return []
    return list(_found(model, inputs, scored, tokens, floors or CircuitFloors(), seed))


def _found(
    model: Any,
    inputs: Tensor,
    scored: Bool[Tensor, "row pos"],
    tokens: Tensor,
    floors: CircuitFloors,
    seed: int,
) -> Iterator[Found]:
    outputs = Outputs(model, inputs, scored)
    matching = _matching(model, inputs, outputs, seed)
    embedded = model.W_E[tokens].detach().double()
    same = model.W_U.shape[1] == len(model.W_E)
    spoken = model.W_U[:, tokens].detach().double() if same else None
    for part in components(model):
        if part.kind != "head":
            continue
        attn = model.blocks[part.layer].attn
        qk = _qk(model, attn, part, embedded)
        if qk is not None:
            share, p = identity_share(qk)
            name = "share of W_E QK W_Eᵀ that c·I explains, between the tokens in use,"
            tests, cause = [Test(name, share, floors.share, p)], []
            if share >= floors.share:
                same = token_classes(matching.inputs)["same"]
                change = matching.knocked_out(part.layer, part.head, same)
                name = "without attention to equal tokens the output changes by a share of"
                cause = [change.test(name, floors.change)]
            yield Found("head", part.layer, "symbol-equality", share, tests, cause, head=part.head)
        if spoken is not None:
            share, p = identity_share(_ov(model, attn, part, embedded) @ spoken)
            kind = "suppresses" if share < 0 else "copies"
            name = f"{kind}: share of W_E OV W_U that c·I explains"
            tests, cause = [Test(name, abs(share), floors.share, p)], []
            if abs(share) >= floors.share:
                change = outputs.ablated(part)
                name = "without the head the output changes by a share of"
                cause = [change.test(name, floors.change)]
            yield Found("head", part.layer, "copying", share, tests, cause, head=part.head)


def _matching(model: Any, inputs: Tensor, outputs: Outputs, seed: int) -> Outputs:
    """The given rows if equal tokens are common in them, else rows that repeat."""
    same = token_classes(inputs)["same"].any(-1)
    repeated = repeated_rows(inputs, seed=seed)
    if repeated is None or float(same.double().mean()) >= _COMMON:
        return outputs
    return Outputs(model, repeated, token_classes(repeated)["same"].any(-1))


def _qk(
    model: Any, attn: Any, part: Component, embedded: Float[Tensor, "token d_model"]
) -> Float[Tensor, "token token"] | None:
    identity = attn.terms["identity"] if "identity" in getattr(attn, "terms", {}) else None
    if not hasattr(attn, "W_K") and identity is None:
        return None
    scores = torch.zeros(len(embedded), len(embedded), dtype=torch.float64)
    if hasattr(attn, "W_K"):
        q, k = (embedded @ _of(attn, w, part.head) for w in (attn.W_Q, attn.W_K))
        scores = q @ k.mT * _scale(model, part)
    if identity is not None:
        a = float(identity.multiplier * identity.a[part.head])
        scores = scores + a * embedded @ embedded.mT
    return scores.detach()


def _scale(model: Any, part: Component) -> float:
    spec = getattr(model, "spec", None)
    width = spec.head_widths[part.layer] if spec is not None else model.cfg.d_head
    return float(1 / sqrt(width))


def _ov(
    model: Any, attn: Any, part: Component, embedded: Float[Tensor, "token d_model"]
) -> Float[Tensor, "token d_model"]:
    written = embedded @ _of(attn, attn.W_V, part.head) @ _of(attn, attn.W_O, part.head)
    spec = getattr(model, "spec", None)
    if spec is not None and spec.identity_ov:
        written = written + float(attn.effective_b[part.head]) * embedded
    return written.detach()


def _of(
    attn: Any, stack: Float[Tensor, "head row column"], head: int
) -> Float[Tensor, "row column"]:
    """A query head's own matrix of a stack, or its group's where heads share keys and values."""
    return stack[head * len(stack) // len(attn.W_O)].double()
