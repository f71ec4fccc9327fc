"""The constructive proof for template tasks as weights (`template` §2.3).

    residual   symbol ⊕ position ⊕ flag of a regular token ⊕ work
    layer 1    equality head: scores a⟨e_t, e_j⟩, values are positions. A match has weight ≥ 1/k,
               anything else ≤ e^{−a(1−μ)}; a clipped ramp makes that 0 or 1, in slot t
    layer 2    uniform average of the slots; one clipped ramp a template → label, or source code
    layer 3    (symbolic labels) the code meets the positions, W_V W_O = b·P_sym copies the symbol

Where the answers follow from the last row of the equality matrix and from regular tokens, layer 2
is left out; where all answers stand at one position, the last layer alone is enough. The residual
still holds the last symbol, so a copy must outweigh it: b = 1 would fail.

Weights know the regular tokens and the alphabet's embedding, no symbol in particular: all symbols
are unseen. Embeddings are orthonormal, or random unit vectors of coherence μ = max |⟨e_u, e_v⟩|,
for which a and b grow. A trained model may use neither projectors nor slots.
"""

from __future__ import annotations

from functools import partial

import torch

from interp.models.attention.heads import Attention
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Construction
from interp.proofs.template.certificate import certificate_of
from interp.proofs.template.layout import Key
from interp.proofs.template.plan import Plan, plan_of
from interp.proofs.template.roles import mechanism_of
from interp.proofs.template.weights import (
    Ramp,
    write_hidden_ramps,
    write_pair,
    write_ramps,
    write_scores,
)
from interp.proofs.zero_model import zero_model
from interp.tasks.template import TemplateTask

__all__ = ["construct_template"]


def construct_template(
    task: TemplateTask,
    *,
    dimension: int | None = None,
    readout_layers: int | None = None,
    seed: int = 0,
) -> Construction:
    """A float64 model that solves the task on every symbol, up to rounding.

    Args:
        task: Any template task.
        dimension: Dimension of random unit embeddings; None for orthonormal ones.
        readout_layers: Attention layers before the readout, 1 or 2; the fewest by default.
        seed: Seed of random embeddings.

    Raises:
        ArgumentError: naming two templates that one layer does not tell apart, or when the
            embeddings are too coherent to copy.
    """
    plan = plan_of(task, dimension, readout_layers, seed)
    model = zero_model(_spec(plan))
    with torch.no_grad():
        _write_ends(model, plan)
        if plan.readout:
            _write_readout(model, plan)
        if task.symbolic:
            _write_copy(model, plan)
    shape = "orthonormal" if dimension is None else f"random-{dimension}"
    return Construction(
        name=f"constructed-{task.name}-{plan.readout + task.symbolic}-layers-{shape}",
        task=task,
        model=model,
        mechanism=mechanism_of(plan),
        certificate=certificate_of(model, task),
        certify=partial(certificate_of, task=task),
    )


def _spec(plan: Plan) -> TransformerSpec:
    ramps = 2 * len(plan.keys)
    heads: list[int] = []
    ffn: list[tuple[int, ...]] = []
    if plan.readout == 1:
        heads.append(plan.k if plan.fixes else 1)
        ffn.append((2 * len(plan.asked) + 2, ramps))
    if plan.readout == 2:
        heads += [1, 1]
        ffn += [(2 * len(plan.asked),), (ramps,)]
    if plan.task.symbolic:
        heads.append(1)
        ffn.append(())
    widest = max(plan.embedding.shape[1], plan.k, len(plan.asked), len(plan.tokens))
    return TransformerSpec(
        d_in=plan.task.vocabulary,
        d_out=plan.task.vocabulary if plan.task.symbolic else 1,
        n_ctx=plan.k,
        d_model=plan.width,
        n_layers=len(heads),
        n_heads=tuple(heads),
        d_head=widest,
        ffn=tuple(ffn),
        positions="learned",
        tied_unembedding=plan.task.symbolic,
        dtype="float64",
    )


def _write_ends(model: SequenceTransformer, plan: Plan) -> None:
    model.embed.W_E[:, plan.symbol] = plan.embedding
    for i, token in enumerate(plan.tokens):
        model.embed.W_E[plan.task.regular.index(token), plan.flag.start + i] = 1
    model.W_pos[:, plan.position] = torch.eye(plan.k, dtype=torch.float64)
    if not plan.task.symbolic:
        model.unembed.W_U[plan.label, 0] = 1


def _write_readout(model: SequenceTransformer, plan: Plan) -> None:
    first, d_head = model.blocks[0], model.spec.head_widths[0]
    write_scores(first.attn, 0, plan.symbol, plan.symbol, plan.a, d_head)
    write_pair(first.attn, 0, plan.position, plan.row)
    if plan.readout == 1:
        if plan.fixes:
            for j in range(plan.k - 1):
                _write_fixed(first.attn, j + 1, plan, j, d_head)
        snaps = [*_snaps(plan), Ramp({plan.position.stop - 1: 2.0}, -0.5, {})]
        write_hidden_ramps(first.mlp, snaps, _readouts(plan, 0, 1.0, gate=len(plan.asked)))
        return
    write_ramps(first.mlp, _snaps(plan))
    write_pair(model.blocks[1].attn, 0, plan.cells, plan.means)
    write_ramps(
        model.blocks[1].mlp,
        _readouts(plan, plan.means.start, float(plan.k), gate=plan.position.stop - 1),
    )


def _write_fixed(attn: Attention, head: int, plan: Plan, position: int, d_head: int) -> None:
    """Write a head that attends to one position and fetches its token flags."""
    _score_position(attn, head, plan, position, d_head)
    r = len(plan.tokens)
    start = plan.flags.start + position * r
    write_pair(attn, head, plan.flag, slice(start, start + r))


def _score_position(attn: Attention, head: int, plan: Plan, position: int, d_head: int) -> None:
    """Write scores for one position; the positions' one-hot codes sum to 1, which is a constant
    query."""
    scale = (plan.c * d_head**0.5) ** 0.5
    attn.W_Q[head, plan.position, 0] = scale
    attn.W_K[head, plan.position.start + position, 0] = scale


def _snaps(plan: Plan) -> list[Ramp]:
    """One ramp a bit: 0 or 1 from attention weights and flags, at position t alone (two layers)
    or at the last (one layer)."""
    ramps, gain, r = [], 4.0 * plan.k, len(plan.tokens)
    for i, bit in enumerate(plan.asked):
        writes = {plan.cells.start + i: 1.0} if plan.readout == 2 else {}
        here = plan.position.start + bit.t
        if bit.token is None:
            away = gain if plan.readout == 2 else 0.0
            reads = {plan.row.start + (bit.j or 0): gain, here: away}
            ramps.append(Ramp(reads, -1.0 - away, writes))
            continue
        v = plan.tokens.index(bit.token)
        fetched = plan.readout == 1 and bit.t < plan.k - 1
        place = plan.flags.start + bit.t * r + v if fetched else plan.flag.start + v
        away = 2.0 if plan.readout == 2 else 0.0
        ramps.append(Ramp({place: 2.0, here: away}, -0.5 - away, writes))
    return ramps


def _readouts(plan: Plan, start: int, times: float, *, gate: int) -> list[Ramp]:
    """One ramp a key: 2·(bits that agree with it − all) + 3/2 is 3/2, or at most −1/2.

    Only where ``gate`` is 1, at the last position: what others would write would be copied along.
    """
    ramps, away = [], plan.gate
    for key in plan.keys:
        reads = {start + i: times * (2.0 if one else -2.0) for i, one in enumerate(key.pattern)}
        shift = 1.5 - 2.0 * sum(key.pattern) - away
        ramps.append(Ramp({**reads, gate: away}, shift, _written(plan, key)))
    return ramps


def _written(plan: Plan, key: Key) -> dict[int, float]:
    """What a key writes: a label, a source position's code, or a token with the last position's
    code."""
    if isinstance(key.outcome, float):
        return {plan.label.start: key.outcome}
    if isinstance(key.outcome, int):
        return {plan.code.start + key.outcome: 1.0}
    vector = plan.direct * plan.embedding[plan.task.regular.index(key.outcome)]
    written = {plan.symbol.start + i: float(v) for i, v in enumerate(vector) if v != 0}
    return {**written, plan.code.stop - 1: 1.0}


def _write_copy(model: SequenceTransformer, plan: Plan) -> None:
    attn, d_head = model.blocks[-1].attn, model.spec.head_widths[-1]
    if plan.readout:
        write_scores(attn, 0, plan.code, plan.position, plan.c, d_head)
    else:
        _score_position(attn, 0, plan, plan.task.source(0), d_head)
    write_pair(attn, 0, plan.symbol, plan.symbol, plan.b)
