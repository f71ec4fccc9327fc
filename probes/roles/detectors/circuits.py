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
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.stats.nulls import permutations_least
from interp.stats.p_values import from_moments
from probes.roles.decision import Found, Test
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place
from probes.roles.examined import Examined

__all__ = ["circuit_roles", "identity_share"]

_FEWEST = 4
_MOST = 512
_COMMON = 0.1
_WEIGHTS = ("W_E", "W_U", "blocks")


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
    std, least = sqrt(energy / (n - 1)), permutations_least(n)
    return share, from_moments(abs(trace), 0.0, std, least=least).p


def circuit_roles(of: Examined) -> Iterator[Found]:
    """Every head's circuits on the tokens of the given rows, tested.

    A model without a dot product has no QK circuit. Of one whose weights do not have
    TransformerLens' names (a wrapped module), of a store and of real inputs there is nothing to
    say.
    """
    evidence, model = of.evidence, of.evidence.model
    if "given" not in evidence.views:
        return
    inputs = evidence.views["given"].batch.inputs
    if inputs.ndim != 2:
        return
    if of.effects is None or not all(hasattr(model, name) for name in _WEIGHTS):
        for role in ("symbol-equality", "copying"):
            evidence.lacks[role] = "no weights are named that it could be read off"
        return
    tokens = inputs[:, 1:].unique()[:_MOST]
    if len(tokens) >= _FEWEST:
        yield from _found(evidence, of.effects, tokens)


def _found(evidence: Evidence, effects: Effects, tokens: Tensor) -> Iterator[Found]:
    model, least, kind = evidence.model, evidence.floors.identity, _matching(evidence)
    embedded = model.W_E[tokens].detach().double()
    same = model.W_U.shape[1] == len(model.W_E)
    spoken = model.W_U[:, tokens].detach().double() if same else None
    for place in evidence.heads:
        layer, head = place
        attn = model.blocks[layer].attn
        qk = _qk(model, attn, place, embedded)
        if qk is not None:
            share, p = identity_share(qk)
            name = "share of W_E QK W_Eᵀ that c·I explains, between the tokens in use,"
            cause = [effects.without_equal(place, kind)] if share >= least else []
            tests = [Test(name, share, least, p)]
            yield Found("head", layer, "symbol-equality", share, tests, cause, head=head)
        if spoken is not None:
            share, p = identity_share(_ov(model, attn, head, embedded) @ spoken)
            verb = "suppresses" if share < 0 else "copies"
            name = f"{verb}: share of W_E OV W_U that c·I explains"
            cause = effects.without_head(place) if abs(share) >= least else []
            tests = [Test(name, abs(share), least, p)]
            yield Found("head", layer, "copying", share, tests, cause, head=head)


def _matching(evidence: Evidence) -> str:
    """The given rows if equal tokens are common in them, else rows that repeat."""
    same = evidence.keys("given", "same").any(-1)
    if "repeated" not in evidence.views or float(same.double().mean()) >= _COMMON:
        return "given"
    return "repeated"


def _qk(
    model: Any, attn: Any, place: Place, embedded: Float[Tensor, "token d_model"]
) -> Float[Tensor, "token token"] | None:
    layer, head = place
    identity = attn.terms["identity"] if "identity" in getattr(attn, "terms", {}) else None
    if not hasattr(attn, "W_K") and identity is None:
        return None
    scores = torch.zeros(len(embedded), len(embedded), dtype=torch.float64)
    if hasattr(attn, "W_K"):
        q, k = (embedded @ _of(attn, w, head) for w in (attn.W_Q, attn.W_K))
        scores = q @ k.mT * _scale(model, layer)
    if identity is not None:
        a = float(identity.multiplier * identity.a[head])
        scores = scores + a * embedded @ embedded.mT
    return scores.detach()


def _scale(model: Any, layer: int) -> float:
    spec = getattr(model, "spec", None)
    width = spec.head_widths[layer] if spec is not None else model.cfg.d_head
    return float(1 / sqrt(width))


def _ov(
    model: Any, attn: Any, head: int, embedded: Float[Tensor, "token d_model"]
) -> Float[Tensor, "token d_model"]:
    written = embedded @ _of(attn, attn.W_V, head) @ _of(attn, attn.W_O, head)
    spec = getattr(model, "spec", None)
    if spec is not None and spec.identity_ov:
        written = written + float(attn.effective_b[head]) * embedded
    return written.detach()


def _of(
    attn: Any, stack: Float[Tensor, "head row column"], head: int
) -> Float[Tensor, "row column"]:
    """A query head's own matrix of a stack, or its group's where heads share keys and values."""
    return stack[head * len(stack) // len(attn.W_O)].double()
