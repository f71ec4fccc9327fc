"""Detect roles of heads that are defined by their weights: diagonal circuits through the embedding.

    symbol-equality   W_E (W_Q W_Kᵀ/√d_head + aI) W_Eᵀ ≈ c·I on the tokens in use, c > 0
    copying           W_E (W_V W_O + bI) W_U ≈ c·I on them, sign kept (negative: suppression)

A basis of the residual stream says nothing about either: in a rotated one the projector a·P is
a·QᵀPQ. Tokens are the basis that the head's job is stated in, so rows and columns are tokens that
the inputs hold; both means are taken out, since a softmax ignores what is constant along keys, and
a constant along queries, or an offset of all logits, relates no token to another.

How diagonal M is, is judged relative to what the head's rank allows. Of M = left rightᵀ, rows and
columns centred, there are three scores, each signed or oriented as the diagonal is (`template`
§2.3):

    share      (tr M)² / (‖M‖² (n − 1))       of M's energy, what c·I explains
    allowed    min(rank, n − 1) / (n − 1)     the most that a circuit of that rank can have: its
                                              best is a projector, with trace and energy both rank
    dominance  share of rows whose own entry leads every other one by at least a tenth of its height
    positive   Σ Re λ / Σ |λ| of M's eigenvalues, in [−1, 1]

With n tokens in d Gaussian directions even a·I has only n/(n + d) of what its rank d allows, one
half where they are as many: a floor on the quotient must stay below that. A head of width 16 on 256
tokens can have a share of .06 at most, so share is judged by the quotient
share / allowed. A quotient near 1 alone does not tell equality: a head that matches *classes* of
tokens, or tokens that are near each other on a circle, spends its whole rank on the diagonal too;
its rows have other entries as large, and dominance is 0.

p of the trace is that of relabelled columns, which have mean 0 and variance ‖M‖²/(n − 1) exactly,
and a normal tail; it is not taken below 1/n!. It says that the diagonal is not chance, not that it
is large. In one or two dimensions no head tells many tokens apart, and dominance says so.

Cause: for equality, the output changes when the head may not attend to equal tokens; for copying,
when what it writes straight to the output is taken away and later layers see it as before. A head
that writes the token before for a later one to read has a copying circuit as well, and next to
nothing of the output comes straight from it. Copying heads of one layer that do the same, so that
none is missed alone, are taken away together; each must then have a tenth of what they write.
Norms between embedding and head, and all earlier layers, are left out of M: a
head that compares or copies what earlier layers wrote is not seen. So are rotations of queries and
keys (M is then the circuit at lag 0). Query heads that share keys and values each have their
group's. Fewer than four tokens tell nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.stats.nulls import permutations_least
from interp.stats.p_values import from_moments
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place
from probes.roles.examined import Examined, of_head

_LEAD = 0.1
_NOTHING = 1e-18
_FEWEST = 4
_MOST = 512
_COMMON = 0.1
_WEIGHTS = ("W_E", "W_U", "blocks")


def circuit_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test every head's circuits on the tokens of the given rows.

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
        yield from _lacking("no weights are named that it could be read off")
        return
    tokens = inputs[:, 1:].unique()[:_MOST]
    if len(tokens) < _FEWEST:
        yield from _lacking(f"{len(tokens)} tokens are in use, and {_FEWEST} are needed")
        return
    embedded = model.W_E[tokens].detach().double()
    yield from _equality(evidence, of.effects, embedded)
    if model.W_U.shape[1] == len(model.W_E):
        spoken = model.W_U[:, tokens].detach().double().mT
        yield from _copying(evidence, of.effects, embedded, spoken)


def _lacking(reason: str) -> Iterator[Lacking]:
    return (Lacking(role, reason) for role in ("symbol-equality", "copying"))


def _equality(
    evidence: Evidence, effects: Effects, embedded: Float[Tensor, "token d_model"]
) -> Iterator[Found]:
    model, kind = evidence.model, _matching(evidence)
    for place in evidence.heads:
        attn = model.blocks[place[0]].attn
        asked = _query_vectors(model, attn, place, embedded)
        if asked is not None:
            found = diagonal_of(asked, embedded, _rank(model, attn, place, "identity_qk"))
            tests = _tests(evidence, found, "W_E QK W_Eᵀ")
            tests[0] = replace(tests[0], score=found.relative)  # avoiding equal tokens is no match
            cause = [effects.without_equal(place, kind)] if holds(tests) else []
            yield of_head(place, "symbol-equality", tests, cause, found.relative)


def _copying(
    evidence: Evidence,
    effects: Effects,
    embedded: Float[Tensor, "token d_model"],
    spoken: Float[Tensor, "token d_model"],
) -> Iterator[Found]:
    model, circuits, copying = evidence.model, {}, {}
    for place in evidence.heads:
        attn = model.blocks[place[0]].attn
        written = _write_vectors(model, attn, place[1], embedded)
        circuits[place] = diagonal_of(written, spoken, _rank(model, attn, place, "identity_ov"))
        verb = "suppresses" if circuits[place].share < 0 else "copies"
        copying[place] = _tests(evidence, circuits[place], "W_E OV W_U", f"{verb}: ")
    for place, tests in copying.items():
        alike = [
            other
            for other in copying
            if other[0] == place[0]
            and circuits[other].share * circuits[place].share > 0
            and holds(copying[other])
        ]
        cause = _straight_cause(effects, place, alike) if holds(tests) else []
        yield of_head(place, "copying", tests, cause, circuits[place].relative)


def _straight_cause(effects: Effects, place: Place, alike: Sequence[Place]) -> list[Test]:
    """The cause of copying: by the head alone, or with those of its layer that do the same."""
    alone = effects.straight([place])
    if holds([alone]) or len(alike) < 2:
        return [alone]
    return [effects.part(place, alike), effects.straight(alike)]


def _tests(evidence: Evidence, found: Diagonal, circuit: str, verb: str = "") -> list[Test]:
    """The tests that a circuit is diagonal, whatever its sign."""
    floors = evidence.floors
    most = f"{found.allowed:.2g} " if found.allowed < 1 else ""
    name = f"{verb}share of {circuit} that c·I explains, of the {most}that its rank allows,"
    if not most:
        name = f"{verb}share of {circuit} that c·I explains"
    return [
        Test(name, abs(found.relative), floors.identity, found.p, family=f"diagonal {circuit}"),
        Test("tokens whose own entry leads", found.dominance, floors.leading),
        Test("Σ Re λ / Σ |λ|", found.positive, floors.positive),
    ]


def _rank(model: Any, attn: Any, place: Place, scalar: str) -> int:
    """The largest rank of a head's circuit: its width, or the whole stream's with an identity
    scalar."""
    layer, head = place
    spec = getattr(model, "spec", None)
    if spec is None or not getattr(spec, scalar):
        return int(attn.W_V.shape[-1]) if spec is None else spec.head_widths[layer]
    value = attn.terms["identity"].a[head] if scalar == "identity_qk" else attn.effective_b[head]
    return model.cfg.d_model if float(value) != 0 else spec.head_widths[layer]


def _matching(evidence: Evidence) -> str:
    """The kind of rows with repeats: the given ones if equal tokens are common in them, else made
    ones."""
    same = evidence.keys("given", "same").any(-1)
    if "repeated" not in evidence.views or float(same.double().mean()) >= _COMMON:
        return "given"
    return "repeated"


def _query_vectors(
    model: Any, attn: Any, place: Place, embedded: Float[Tensor, "token d_model"]
) -> Float[Tensor, "token d_model"] | None:
    """The vector by which each token, as a query, scores keys' embeddings; None without such
    scores."""
    layer, head = place
    identity = attn.terms["identity"] if "identity" in getattr(attn, "terms", {}) else None
    if not hasattr(attn, "W_K") and identity is None:
        return None
    asked = torch.zeros_like(embedded)
    if hasattr(attn, "W_K"):
        q = embedded @ _of(attn, attn.W_Q, head)
        asked = q @ _of(attn, attn.W_K, head).mT * _scale(model, layer)
    if identity is not None:
        asked = asked + float(identity.multiplier * identity.a[head]) * embedded
    return asked.detach()


def _scale(model: Any, layer: int) -> float:
    spec = getattr(model, "spec", None)
    width = spec.head_widths[layer] if spec is not None else model.cfg.d_head
    return float(1 / sqrt(width))


def _write_vectors(
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


@dataclass(frozen=True)
class Diagonal:
    """Scores of how diagonal a circuit is.

    Attributes:
        share: The share of its energy that c·I explains, with the sign of the diagonal.
        allowed: The largest share of a circuit of that rank.
        dominance: The share of rows in which the diagonal entry leads.
        positive: The positive share of the eigenvalues, along the diagonal's sign.
        p: The p-value of the trace.
    """

    share: float
    allowed: float
    dominance: float
    positive: float
    p: float

    @property
    def relative(self) -> float:
        """The share relative to what the rank allows, signed, in [−1, 1]."""
        return self.share / self.allowed


def identity_share(circuit: Float[Tensor, "token token"]) -> tuple[float, float]:
    """Share of a token × token circuit's energy that c·I explains, signed as c; and p.

    Rows and columns are centred first. 0 and 1 for a circuit of nothing.
    """
    m = circuit.double()
    m = m - m.mean(0, keepdim=True)
    m = m - m.mean(1, keepdim=True)
    n, energy, trace = len(m), float(m.square().sum()), float(m.trace())
    if energy <= _NOTHING * max(float(circuit.double().square().sum()), 1e-300):
        return 0.0, 1.0
    share = trace * abs(trace) / (energy * (n - 1))
    std, least = sqrt(energy / (n - 1)), permutations_least(n)
    return share, from_moments(abs(trace), 0.0, std, least=least).p


def diagonal_of(
    left: Float[Tensor, "token width"], right: Float[Tensor, "token width"], rank: int
) -> Diagonal:
    """How diagonal left rightᵀ is.

    Args:
        left: What a head reads of each token, in any basis of the stream.
        right: What it compares that with, or writes it to.
        rank: The largest rank that the circuit's weights can have.

    Returns:
        The numbers; nothing diagonal, with p = 1, where products are beyond the largest number.
    """
    left, right = (side.double() - side.double().mean(0) for side in (left, right))
    m, n = left @ right.mT, len(left)
    allowed = min(max(rank, 1), n - 1) / (n - 1)
    if not m.isfinite().all():
        return Diagonal(0.0, allowed, 0.0, 0.0, 1.0)
    share, p = identity_share(m)
    if share == 0:
        return Diagonal(0.0, allowed, 0.0, 0.0, p)
    m = m if share > 0 else -m
    own = m.diagonal().clone()
    m.fill_diagonal_(-torch.inf)
    leads = (own > 0) & (own - m.amax(1) >= _LEAD * own)
    eigen = torch.linalg.eigvals(right.mT @ left)
    positive = float(eigen.real.sum() / eigen.abs().sum())
    return Diagonal(share, allowed, float(leads.double().mean()), positive * (1, -1)[share < 0], p)
