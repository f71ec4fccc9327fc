"""Decoys that are needed for everything: heads with a role's attention whose work is another.

Every model has one head of which the loss depends at every position, and that attends as a role
says. The logits have a wrong push, which the head takes back; where it looks for its role is not
what it takes the push back with, or it does so where the role's event does not happen:

    previous-token, sink   half of its attention is the role's, and suppresses a token that does not
                           come next and that another head raises; the other
                           half is on its own position and takes back the push on the query's token
    positional             half is on the last few positions; the other half, on equal tokens, takes
                           back the push
    duplicate-token        on earlier equal tokens, or on its own position where there are none:
                           both hold the query's token, of which it takes back the push
    induction              on what followed equal tokens, or on its own position: both hold what
                           stood before the query, of which another head makes the push
    copying                raises what it attends to by a fraction of a nat, and writes it for an
                           induction head to read, which is what the loss depends on

Each is necessary and not specific for that role. The roles that such a model does have are exempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt

import torch
from torch import Tensor

from analyses.benchmarks.circuits import (
    CircuitLayout,
    Sizes,
    after_same,
    by_lag,
    construct_circuit,
    spec_of,
    write_attention,
)
from analyses.benchmarks.known import Claim
from analyses.benchmarks.scoring import COMPOSED
from prooflens.architectures import SequenceTransformer

__all__ = ["NEEDED", "all_but", "blank", "construct_needed", "own_and_first", "write_head"]

_PUSH = 6.0
"""Number of nats by which the wrong push raises a logit."""

_FAINT = 0.6
"""Number of nats by which the head with the role ``copying`` raises the token that it attends
to."""

Rule = Callable[[CircuitLayout], tuple[Tensor, Tensor]]


def own_and_first(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    """Return the rule of a head with three fifths of its attention on the first position and two
    fifths on its own."""
    table = torch.eye(layout.sizes.length, dtype=torch.float64)
    mean = 2 / layout.width  # which the norm takes from every entry
    table[:, 0] = (1.0 + log(1.5) / 40) * (1 - mean) / (1 - mean * len(table))
    return layout.positions @ table, layout.positions


def _same_and(layout: CircuitLayout, lags: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Return queries and keys for attention to equal tokens and, by a table of scores, to lags.

    Args:
        layout: The coordinates of the residual stream.
        lags: Scores of the keys, ``[query, key]``.
        weight: Score of an equal token.
    """
    queries = torch.cat([weight * layout.tokens, layout.positions @ lags], dim=1)
    return queries, torch.cat([layout.tokens, layout.positions], dim=1)


def _same_or_own(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    return _same_and(layout, -0.5 * torch.eye(layout.sizes.length, dtype=torch.float64), 1.0)


def _same_and_recent(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    place = torch.arange(layout.sizes.length)
    lag = place[:, None] - place
    table = ((lag >= 2) & (lag <= 4)).double() - 2.0 * (lag == 0)
    return _same_and(layout, table, 1.0 + log(9 / 7) / 40)


def _after_same_or_own(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    queries, keys = after_same(layout)
    return (
        torch.cat([queries, 0.5 * layout.positions], dim=1),
        torch.cat([keys, layout.positions], dim=1),
    )


_ONE_LAYER: Mapping[str, tuple[Rule, float]] = {
    "previous-token": (by_lag(lambda lag: (lag == 0) | (lag == 1)), 0.5),
    "sink": (own_and_first, 0.4),
    "positional": (_same_and_recent, 0.3),
    "duplicate-token": (_same_or_own, 1.0),
}
"""Role that one head seems to have → the rule by which it attends, and the share of its attention
that takes back the wrong push."""

NEEDED = (*_ONE_LAYER, "induction", "copying")
"""Roles for which there is such a decoy: its head attends as the role says."""


@torch.no_grad()
def construct_needed(
    role: str, sizes: Sizes, *, seed: int = 0
) -> tuple[SequenceTransformer, frozenset[Claim]]:
    """Build a float64 model in which one head has a role's attention and is necessary, but not
    through this role.

    Args:
        role: One of :data:`NEEDED`.
        sizes: The sizes of the model; other heads are idle.
        seed: Seed for the places of the heads.

    Returns:
        The model, and the claims that are exempt from scoring: all except this role of this head.
    """
    order = torch.randperm(sizes.heads, generator=torch.Generator().manual_seed(seed)).tolist()
    if role == "copying":
        return _copying(sizes, seed)
    if role == "induction":
        return _induction(sizes, order, seed)
    layout = CircuitLayout(sizes)
    model = blank(layout, 1, seed)
    rule, share = _ONE_LAYER[role]
    write_head(model, 0, order[0], rule(layout), [(layout.tokens, layout.answer, -1.0)])
    if role in ("previous-token", "sink"):  # a push on the other half's token, so that it is missed
        lag = 1 if role == "previous-token" else -1
        other = by_lag(lambda s: s == lag)(layout)  # no key is at lag −1: then it is the first
        write_head(model, 0, order[1], other, [(layout.tokens, layout.answer, 0.5 * share)])
    read = layout.tokens + layout.answer / share
    model.unembed.W_U.copy_(sqrt(3 / layout.width) * _PUSH * read)
    return model, all_but((1, sizes.heads), (0, order[0]), role)


def _induction(
    sizes: Sizes, order: list[int], seed: int
) -> tuple[SequenceTransformer, frozenset[Claim]]:
    """Build the decoy for ``induction``, in two layers.

    Two heads write the tokens one and two positions back. From what stood before the query, one
    later head makes the wrong push, and the head with the role's attention takes it back.
    """
    layout = CircuitLayout(sizes)
    model = blank(layout, 2, seed)
    before = by_lag(lambda lag: lag == 1)(layout)
    earlier = by_lag(lambda lag: lag == 2)(layout)
    slot = layout.slot[:, : sizes.vocabulary]
    write_head(model, 0, order[0], before, [(layout.tokens, slot, 1.0)])
    write_head(model, 0, order[1], earlier, [(layout.tokens, layout.unread, 1.0)])
    write_head(model, 1, order[0], before, [(layout.tokens, layout.answer, 1.0)])
    both = [(slot, layout.answer, -1.0), (layout.unread, layout.answer, -1.0)]
    write_head(model, 1, order[1], _after_same_or_own(layout), both)
    model.unembed.W_U.copy_(sqrt(5 / layout.width) * _PUSH * layout.answer)
    return model, all_but((2, sizes.heads), (1, order[1]), "induction")


def _copying(sizes: Sizes, seed: int) -> tuple[SequenceTransformer, frozenset[Claim]]:
    """Build the decoy for ``copying``: the induction circuit, whose first head also writes a little
    of the answer."""
    made = construct_circuit("induction", sizes, seed=seed)
    head = next(part.head for part in made.mechanism.parts if part.layer == 0)
    layout, size = CircuitLayout(sizes), sizes.vocabulary
    faint = _FAINT / (log(size) + 3)
    made.model.blocks[0].attn.W_O[int(head or 0), :size] += faint * layout.answer.T
    return made.model, all_but((2, sizes.heads), (0, int(head or 0)), "copying")


def all_but(shape: tuple[int, int], place: tuple[int, int], role: str) -> frozenset[Claim]:
    """Return the claims of every role in :data:`NEEDED` or ``COMPOSED`` for every head, except one
    role of one head.

    Args:
        shape: The number of layers, and of heads in each.
        place: Layer and number of the head.
        role: The role that is left out for this head.
    """
    layers, heads = range(shape[0]), range(shape[1])
    every = {
        ("head", layer, head, name, "")
        for layer in layers
        for head in heads
        for name in (*NEEDED, *COMPOSED)
    }
    return frozenset(every - {("head", *place, role, "")})


def blank(layout: CircuitLayout, layers: int, seed: int) -> SequenceTransformer:
    """Return a model whose heads write nothing."""
    model = SequenceTransformer(spec_of(layout.sizes, layout, layers), seed=seed)
    model.embed.W_E.copy_(layout.tokens.T)
    if model.pos_embed is not None:
        model.pos_embed.W_pos.copy_(layout.positions.T)
    for block in model.blocks:
        block.attn.W_O.zero_()
    return model


def write_head(
    model: SequenceTransformer,
    layer: int,
    head: int,
    rule: tuple[Tensor, Tensor],
    values: Sequence[tuple[Tensor, Tensor, float]],
) -> None:
    """Set a head's weights: the rule by which it attends, and from which blocks of coordinates it
    reads, into which it writes, and with which factor."""
    attn, start = model.blocks[layer].attn, 0
    scale = sqrt((2 + 2 * layer) / model.spec.d_model)
    write_attention(attn, head, rule, scale)
    attn.W_V[head] = 0
    for read, write, factor in values:
        end = start + read.shape[1]
        attn.W_V[head, :, start:end] = read * scale
        attn.W_O[head, start:end] = factor * write[:, : read.shape[1]].T
        start = end
