"""Constructed heads with known language-model roles (induction and others): ground truth for roles.

Residual coordinates: tokens ⊕ positions ⊕ previous token ⊕ answer, all one-hot. With a the strength
of a score and s the answer's largest entry:

    previous-token, local, sink,  the query position t matches the wanted key positions
    mirror, halved, periodic,
    all-but-first
    smaller, greater              QK = a · a table of ones and zeros of token pairs
    duplicate-token               QK = a·P_tokens with self masked; the first position scores a/2
    uniform                       QK = 0: exactly 1/(t + 1)
    dense                         QK = a table of token pairs
    induction                     layer 0: previous-token head writes x_{t−1} into its own slot;
                                  layer 1: QK matches x_t with that slot

and OV writes value(x) to the answer. The attention that leaks to other keys is at most L e^{−a}
(a/2 for duplicates; for induction a(1 − 2·leak of layer 0)), which changes the answer by at most 2
s · leak. Idle heads have random queries, keys and values and write nothing.

``wiring`` makes decoys of the same shapes: the pattern is right and nothing depends on it. They
answer with the current token's value, which needs no attention.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Literal, get_args

import torch

from interp.errors import Problems
from interp.models.attention.heads import Attention
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part
from interp.tasks.relation import TokenRelation

Wiring = Literal["used", "unread", "silent", "constant"]


_ROLES = {
    "mirror": "fixed-position",
    "halved": "fixed-position",
    "smaller": "token-comparison",
    "greater": "token-comparison",
    "periodic": "positional-periodic",
    "all-but-first": "uniform",
}
"""Relation of the task → the role of the head that computes it, where role and relation have
different names."""


def construct_relation(
    task: TokenRelation,
    *,
    heads: int = 1,
    strength: float = 30.0,
    seed: int = 0,
    wiring: Wiring = "used",
) -> Construction:
    """Build a float64 model in which one head (two for induction) computes the task's relation.

    Args:
        task: The relation and the value that is passed on.
        heads: The number of heads in a layer, idle ones included.
        strength: The score a of a wanted key.
        seed: Seed for the head's place among the idle ones, and for their weights.
        wiring: ``used``; or a decoy with the same pattern: ``unread`` (nothing reads the answer's
            slot), ``silent`` (the head writes nothing), ``constant`` (it writes the same from every
            key). A decoy's mechanism has no parts.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """
    problems = Problems("construct_relation")
    problems.need(heads >= 1, "heads", "must be at least 1", heads, "raise it")
    problems.need(0 < strength <= 300, "strength", "must be in (0, 300]", strength, "try 30")
    known = get_args(Wiring)
    problems.need(wiring in known, "wiring", f"must be one of {', '.join(known)}", wiring, "pick")
    problems.raise_if_any()
    layout = _StreamLayout(task)
    spec = _spec(task, layout.width, heads)
    model = SequenceTransformer(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(heads, (spec.n_layers,), generator=generator).tolist()
    with torch.no_grad():
        _write_ends(model, layout, wiring)
        for layer, place in enumerate(places):
            attn = model.blocks[layer].attn
            attn.W_O.zero_()
            for weight in (attn.W_Q, attn.W_K, attn.W_V):
                weight[place] = 0
            _write_attention(attn, place, layout, strength, last=layer == spec.n_layers - 1)
            _write_values(attn, place, layout, wiring, last=layer == spec.n_layers - 1)
    return Construction(
        name=f"constructed-{task.name}" + ("" if wiring == "used" else f"-{wiring}"),
        task=task,
        model=model,
        mechanism=_mechanism(task, places) if wiring == "used" else Mechanism(()),
        certificate=_certificate(task, spec, strength),
    )


def _spec(task: TokenRelation, width: int, heads: int) -> TransformerSpec:
    return TransformerSpec(
        d_in=task.symbols + 1,
        d_out=task.outputs,
        n_ctx=task.length,
        d_model=width,
        n_layers=2 if task.relation == "induction" else 1,
        n_heads=heads,
        d_head=max(task.length, task.symbols + 1),
        positions="learned",
        mask_self=task.relation == "duplicate-token",
        dtype="float64",
    )


class _StreamLayout:
    """The coordinates of the residual stream; each field is a ``[d_model, size]`` block of the
    identity."""

    def __init__(self, task: TokenRelation) -> None:
        self.task = task
        tokens = task.symbols + 1
        before = tokens if task.relation == "induction" else 0
        sizes = (tokens, task.length, before, task.outputs)
        self.width = sum(sizes)
        blocks = torch.eye(self.width, dtype=torch.float64).split(sizes, dim=1)
        self.tokens, self.positions, self.previous, self.answer = blocks


def _write_ends(model: SequenceTransformer, layout: _StreamLayout, wiring: Wiring) -> None:
    model.embed.W_E.copy_(layout.tokens.T)
    if model.pos_embed is not None:
        model.pos_embed.W_pos.copy_(layout.positions.T)
    if wiring == "used":
        model.unembed.W_U.copy_(layout.answer)
        return
    now = layout.tokens @ layout.task.values()
    model.unembed.W_U.copy_(now if wiring == "unread" else now + layout.answer)


def _write_attention(
    attn: Attention, head: int, layout: _StreamLayout, strength: float, *, last: bool
) -> None:
    """Write W_Q and W_K so that the scores are strength × (queries · keys)."""
    task, relation = layout.task, layout.task.relation if last else "previous-token"
    tokens, positions = layout.tokens, layout.positions
    if relation == "uniform":
        return
    if relation == "dense":
        queries, keys, strength = tokens @ task.table(), tokens, 1.0
    elif relation in ("smaller", "greater"):
        place = torch.arange(task.symbols + 1)
        apart = place[:, None] - place if relation == "smaller" else place - place[:, None]
        queries, keys = tokens @ ((apart > 0) & (place > 0)).double(), tokens
    elif relation == "duplicate-token":
        first = positions[:, :1] @ torch.full((1, task.symbols + 1), 0.5, dtype=torch.float64)
        queries, keys = tokens, tokens + first
    elif relation == "induction":
        queries, keys = tokens, layout.previous
    else:
        wanted = replace(task, relation=relation).by_position()
        queries, keys = positions @ wanted.double(), positions
    width = queries.shape[1]
    attn.W_Q[head, :, :width] = queries * (strength * attn.W_Q.shape[-1] ** 0.5)
    attn.W_K[head, :, :width] = keys


def _write_values(
    attn: Attention, head: int, layout: _StreamLayout, wiring: Wiring, *, last: bool
) -> None:
    read, written = layout.tokens, layout.previous.T
    if last:
        if wiring == "silent":
            return
        values = layout.task.values()
        written = values @ layout.answer.T
        if wiring == "constant":
            written = values.mean(0, keepdim=True).expand_as(values) @ layout.answer.T
    attn.W_V[head, :, : read.shape[1]] = read
    attn.W_O[head, : written.shape[0]] = written


def _mechanism(task: TokenRelation, places: list[int]) -> Mechanism:
    layer, place = len(places) - 1, places[-1]
    roles: list[str] = [_ROLES.get(task.relation, task.relation)]
    if task.relation == "duplicate-token":
        roles.append("symbol-equality")
    if task.value in ("copy", "negative"):
        roles.append("copying")
    parts = [Part("head", layer, place, role, "y") for role in roles]
    if task.relation == "induction":
        parts.insert(0, Part("head", 0, places[0], "previous-token", "x[t-1]"))
    return Mechanism(tuple(parts))


def _certificate(task: TokenRelation, spec: TransformerSpec, strength: float) -> Certificate:
    """Bound the error: the leak as in the module's docstring, and rounding.

    Scores of size a have an error of at most (2 d_model + 8) a u, which changes attention by as
    much, and averages of the values have one of (L + d_model + 8) u of their size.
    """
    size = float(task.values().abs().max())
    leak, first = 0.0, task.length * exp(-strength)
    if task.relation == "duplicate-token":
        leak = task.length * exp(-strength / 2)
    elif task.relation == "induction":
        leak = task.length * exp(-strength * (1 - 2 * first))
    elif task.relation not in ("uniform", "dense"):
        leak = first
    unit = torch.finfo(torch.float64).eps / 2
    largest = {"uniform": 0.0, "dense": float(task.table().abs().max())}
    score = largest.get(task.relation, strength)
    moved = 2 * (2 * spec.d_model + 8) * score * unit
    averages = (task.length + spec.d_model + 8) * unit
    parts = {"attention that leaks": 2 * size * leak, "rounding": 2 * size * (moved + averages)}
    where = "in the second and later blocks" if task.relation == "induction" else "everywhere"
    domain = f"every row the task can draw, {where}"
    return Certificate(sum(parts.values()), parts, domain)
