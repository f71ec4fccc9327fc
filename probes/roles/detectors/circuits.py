"""Detect roles of heads that are defined by their weights: diagonal circuits through the embedding.

    symbol-equality   W_E (W_Q W_Kᵀ/√d_head + aI) W_Eᵀ ≈ c·I on the tokens in use, c > 0
    copying           W_E (W_V W_O + bI) W_U ≈ c·I on them, sign kept (negative: suppression)

No basis of the residual stream is special for either: in a rotated one the projector a·P is a·QᵀPQ.
The head's job is about tokens, so rows and columns are the tokens that the inputs hold. Row and
column means are removed, because a softmax ignores what is constant along keys, and because a
constant along queries, or an offset of all logits, relates no token to another.

How diagonal M is, is judged relative to what the head's rank allows. For M = left rightᵀ with
centred rows and columns there are three scores, each with the sign of the diagonal (`template`
§2.3):

    share      (tr M)² / (‖M‖² (n − 1))       the share of M's energy that c·I explains
    allowed    min(rank, n − 1) / (n − 1)     the largest share of a circuit of that rank: a
                                              projector's, with trace and energy both rank
    dominance  share of rows whose diagonal entry exceeds every other one by at least a tenth of
               its own size
    positive   Σ Re λ / Σ |λ| of M's eigenvalues, in [−1, 1]

With n tokens in d Gaussian directions even a·I has only n/(n + d) of what its rank d allows, one
half if n = d: a floor on the quotient must stay below that. A head of width 16 on 256 tokens can
have a share of .06 at most, so the quotient share / allowed is what is judged. A quotient near 1
alone does not show equality: a head that matches *classes* of tokens, or tokens that are near each
other on a circle, spends its whole rank on the diagonal too; its rows have other entries as large,
and dominance is 0.

The p-value of the trace is against relabelled columns, whose trace has mean 0 and variance ‖M‖²/(n
− 1) exactly, with a normal tail; it is at least 1/n!. It says that the diagonal is not due to
chance, not that it is large. In one or two dimensions no head tells many tokens apart; dominance is
low then.

Cause: for equality, the output changes when the head's attention to equal tokens is removed; for
copying, it changes when the head's direct path to the output is cut while later layers still read
what it writes. A head that writes the previous token for a later head to read has a copying circuit
as well, but hardly any direct effect. Copying heads of one layer that do the same, so that none is
missed alone, are ablated together; each must then contribute a tenth of what they write. Norms
between embedding and head, and all earlier layers, are left out of M: a head that compares or
copies what earlier layers wrote is not found. Rotations of queries and keys are left out as well (M
is then the circuit at lag 0). Query heads that share keys and values each use their group's. Fewer
than four tokens are too few to judge.
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
    """Test every head's QK and OV circuits on the tokens of the given rows.

    Yields:
        A finding for each head and role. A model without dot-product scores has no finding for the
        QK circuit, and one whose vocabulary of outputs is not that of inputs has none for the OV
        circuit. The roles are reported as not tested for a store, and for weights without
        TransformerLens' names (a wrapped module). Nothing for real inputs.
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
    """Test whether a copying head's direct effect matters: alone or, if not, with similar heads of
    its layer."""
    alone = effects.straight([place])
    if holds([alone]) or len(alike) < 2:
        return [alone]
    return [effects.part(place, alike), effects.straight(alike)]


def _tests(evidence: Evidence, found: Diagonal, circuit: str, verb: str = "") -> list[Test]:
    """Return the tests that a circuit is close to c·I, whatever the sign of c."""
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
    """Return the largest rank of a head's circuit: its width, or d_model if it has an identity
    term."""
    layer, head = place
    spec = getattr(model, "spec", None)
    if spec is None or not getattr(spec, scalar):
        return int(attn.W_V.shape[-1]) if spec is None else spec.head_widths[layer]
    value = attn.terms["identity"].a[head] if scalar == "identity_qk" else attn.effective_b[head]
    return model.cfg.d_model if float(value) != 0 else spec.head_widths[layer]


def _matching(evidence: Evidence) -> str:
    """Return the kind of rows on which equality is tested: ``given`` if equal tokens are common in
    them, else ``repeated``."""
    same = evidence.keys("given", "same").any(-1)
    if "repeated" not in evidence.views or float(same.double().mean()) >= _COMMON:
        return "given"
    return "repeated"


def _query_vectors(
    model: Any, attn: Any, place: Place, embedded: Float[Tensor, "token d_model"]
) -> Float[Tensor, "token d_model"] | None:
    """Return, for each token as a query, the vector whose dot product with a key's embedding is the
    attention score.

    None for a head without such scores.
    """
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
    """Return a query head's matrix from a stack of matrices; its group's if heads share keys and
    values."""
    return stack[head * len(stack) // len(attn.W_O)].double()


@dataclass(frozen=True)
class Diagonal:
    """Scores of how diagonal a circuit is.

    Attributes:
        share: The share of the circuit's energy that c·I explains, with the sign of the diagonal.
        allowed: The largest share that a circuit of its rank can have.
        dominance: The share of rows in which the diagonal entry is clearly the largest.
        positive: Σ Re λ / Σ |λ| of the eigenvalues, times the diagonal's sign.
        p: The p-value of the trace.
    """

    share: float
    allowed: float
    dominance: float
    positive: float
    p: float

    @property
    def relative(self) -> float:
        """The share relative to what the rank allows, with the sign of the diagonal."""
        return self.share / self.allowed


def identity_share(circuit: Float[Tensor, "token token"]) -> tuple[float, float]:
    """Compute the share of a token × token circuit's energy that c·I explains.

    Rows and columns are centred first.

    Returns:
        The share with the sign of c, and the p-value of the trace; 0 and 1 for a circuit that is
        zero.
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
    """Score how diagonal the circuit left rightᵀ is.

    Args:
        left: What a head reads of each token, in any basis of the residual stream.
        right: What it is compared with (QK circuit), or read out by (OV circuit).
        rank: The largest rank that the circuit's weights can have.

    Returns:
        The scores; all 0, with p = 1, if an entry of the circuit is not finite.
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
