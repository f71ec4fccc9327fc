"""A role: a head that attends to its own position, and passes on what is there."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import prooflens as pl
from prooflens_example.task import FirstCopy


def own_token(of: pl.roles.Examined) -> Iterator[pl.roles.Found]:
    """The behaviour and the cause of the role, for every head."""
    for layer, head in of.evidence.heads:
        share = of.evidence.share((layer, head), "own")
        if share is None:
            continue
        floors = of.evidence.floors
        behaviour = [
            share.test("share of attention to its own position", floors.share),
            share.beyond("beyond even attention", floors.excess),
        ]
        cause = None  # a store has no model to change
        if of.effects is not None:
            holds = all(test.score >= test.floor for test in behaviour)
            cause = of.effects.without_head((layer, head)) if holds else []
        yield pl.roles.Found("head", layer, "own-token", share.score, behaviour, cause, head=head)


def plant_case(*, passing: bool, seed: int) -> pl.roles.RoleCase:
    """A model whose head L0H0 looks at its own position; in a decoy it passes nothing on."""
    symbols, length, width = 6, 10, 16
    sizes = {"d_model": width, "n_layers": 1, "n_heads": 2, "d_head": width}
    spec = pl.TransformerSpec(
        d_in=symbols, d_out=symbols, n_ctx=length, positions="learned", **sizes
    )
    model = pl.SequenceTransformer(spec, seed=seed).eval()
    token, place = torch.eye(width)[:symbols], torch.eye(width)[symbols:]
    attention = model.blocks[0].attn
    with torch.no_grad():
        model.embed.W_E.copy_(token)
        model.pos_embed.W_pos.copy_(place)
        attention.W_Q[0], attention.W_K[0] = 12 * torch.eye(width), place.T @ place * 4
        attention.W_V[0], attention.W_O[0] = passing * token.T @ token, torch.eye(width)
        attention.W_O[1] = 0
        model.unembed.W_U.copy_(token.T)
    rows = FirstCopy(symbols, length).sample(64, seed=seed)
    plays = (("head", 0, 0),) if passing else ()
    return pl.roles.RoleCase(f"{'planted' if passing else 'decoy'} {seed}", model, rows, plays)


def cases() -> Iterator[pl.roles.RoleCase]:
    """Five models in which the head plays the role, and five in which none does."""
    for seed in range(5):
        yield plant_case(passing=True, seed=seed)
        yield plant_case(passing=False, seed=seed)


OWN_TOKEN = pl.roles.Role(
    name="own-token",
    sentence="A head that attends to its own position and passes on what is there.",
    behaviours=("share of attention to its own position, and beyond even attention",),
    causes=("without the head the output changes, or the loss rises",),
    floors=("share", "excess"),
    strength="share of attention on its own position",
    source="an example",
    detectors=(own_token,),
    profiles=("task", "language"),
    cases=cases,
)
