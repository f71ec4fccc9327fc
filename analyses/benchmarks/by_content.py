"""Language models with one head whose role depends on more than where it looks.

    copy-suppression   g is a permutation of the tokens, and g(x) is predicted wrongly after x: by
                       the unembedding (``bigram``), or by a head that looks for g(x) and raises it
                       (``looked-up``). A head looks for what is predicted and lowers it

Every model has idle heads beside it, and decoys differ from it in one thing:

    unread, silent, constant   the attention of the circuit, whose answer is not read, not written,
                               or the same from every key
    previous                   the token before is predicted; a head attends there by position and
                               lowers it

Layouts, attention and values are those of :mod:`analyses.benchmarks.circuits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf, sqrt

import torch
from jaxtyping import Int
from torch import Tensor

from analyses.benchmarks.circuits import Layout, Sizes, by_lag, with_gains
from analyses.benchmarks.language import Built, Claim, LanguageSubject
from analyses.benchmarks.needed import blank, write_head
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part
from interp.proofs.random_basis import random_basis

__all__ = ["PLANTED", "decoys", "subjects"]

_PUSH = 6.0
"""Nats by which a wrong prediction raises a logit."""

_FAINT = 0.1
"""The factor on what is not read or constant: too small to change a norm."""

Value = tuple[Tensor, Tensor, float]


def _permutation(sizes: Sizes, seed: int) -> Int[Tensor, " token"]:
    """A permutation of the tokens without a fixed point but the token that begins every row: one
    cycle through all others."""
    order = torch.randperm(
        sizes.vocabulary - sizes.bos, generator=torch.Generator().manual_seed(seed)
    )
    order = order + int(sizes.bos)
    image = torch.arange(sizes.vocabulary)
    image[order] = order.roll(-1)
    return image


def _looked_up(layout: Layout, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to positions whose ``key`` block is what the query's ``query`` block says, else to
    the first position."""
    every = layout.tokens.sum(1, keepdim=True)
    queries = torch.cat([query, 0.5 * every], dim=1)
    return queries, torch.cat([key, layout.positions[:, :1]], dim=1)


def _values(layout: Layout, written: Tensor, wiring: str, factor: float) -> list[Value]:
    """What a head makes of the tokens it attends to; nothing of one that begins every row."""
    first = int(layout.sizes.bos)
    if wiring == "unread":
        written = layout.unread
    if wiring == "constant":
        written = written.mean(1, keepdim=True).expand(written.shape)
    factor *= {"used": 1.0, "silent": 0.0}.get(wiring, _FAINT)
    return [(layout.tokens[:, first:], written[:, first:], factor)]


@torch.no_grad()
def _suppression(
    kind: str, sizes: Sizes, seed: int, wiring: str
) -> tuple[SequenceTransformer, list[Part]]:
    layout, places = Layout(sizes), _places(sizes, seed, 2)
    image, model = _permutation(sizes, seed), blank(layout, 1 if kind == "bigram" else 2, seed)
    own, answer = layout.tokens, layout.answer
    scale = sqrt(3 / layout.width) * _PUSH
    if kind == "bigram":
        moved = own[:, image.argsort()]  # the column of g(x) is the coordinate of x
        values = _values(layout, moved, wiring, -1.0)
        write_head(model, 0, places[0], _looked_up(layout, moved, own), values)
        model.unembed.W_U.copy_(scale * moved)
        return model, [Part("head", 0, places[0], role, "") for role in _SUPPRESSES]
    before = by_lag(lambda lag: lag == 1)(layout)
    finds = before if kind == "previous" else _looked_up(layout, own[:, image.argsort()], own)
    suppresses = before if kind == "previous" else _looked_up(layout, answer, own)
    write_head(model, 0, places[0], finds, _values(layout, answer, "used", 1.0))
    write_head(model, 1, places[1], suppresses, _values(layout, answer, wiring, -1.0))
    model.unembed.W_U.copy_(scale * answer)
    parts = [Part("head", 1, places[1], role, "") for role in _SUPPRESSES]
    if kind == "previous":
        parts = [
            Part("head", layer, place, f"unscored:{role}", "")
            for layer, place in enumerate(places)
            for role in ("previous-token", "copying")
        ]
    return model, [*parts, Part("head", 0, places[0], "unscored:copying", "")]


_SUPPRESSES = ("copy-suppression", "copying")
PLANTED: Mapping[str, Callable[[str, Sizes, int, str], tuple[SequenceTransformer, list[Part]]]] = {
    "copy-suppression": _suppression,
}
"""Role → what builds its models: kind, sizes, seed and wiring → the model and who plays what."""

_SCORED: Mapping[tuple[str, str], tuple[tuple[int, int, int, bool], ...]] = {
    ("copy-suppression", "bigram"): ((11, 24, 2, True), (14, 28, 3, True), (12, 30, 1, True)),
    ("copy-suppression", "looked-up"): ((12, 26, 2, True), (15, 30, 3, True), (13, 28, 1, True)),
}
_TUNED: Mapping[tuple[str, str], tuple[tuple[int, int, int, bool], ...]] = {
    ("copy-suppression", "bigram"): ((13, 26, 2, True),),
    ("copy-suppression", "looked-up"): ((14, 27, 2, True),),
}
"""Vocabulary, length, heads per layer, and whether token 0 begins every row."""

_ALIKE: Mapping[str, str] = {"copy-suppression": "previous"}
"""Role → the kind of its models that looks alike and is something else."""

_WIRINGS = ("unread", "silent", "constant")


def subjects(*, tuning: bool = False) -> list[LanguageSubject]:
    """Every model, plain and in a random basis with random gains."""
    return [
        LanguageSubject(f"language {name}{' hidden' * hidden}", make, seed)
        for name, make, seed, hidden in _models(tuning, 1_000 if tuning else 61_000)
    ]


def decoys(*, tuning: bool = False) -> list[LanguageSubject]:
    """The same attention with an answer that is of no use, and what looks alike."""
    start, found = 1_500 if tuning else 65_000, []
    cases = list((_TUNED if tuning else _SCORED).items())
    for number, ((role, kind), sizes) in enumerate(cases):
        wirings = _WIRINGS[number % 3 :][:1] if tuning else _WIRINGS
        tried = [(kind, wiring, Sizes(*one)) for wiring in wirings for one in sizes[:1]]
        if role in _ALIKE and (role, kind) == next(key for key, _ in cases if key[0] == role):
            tried += [(_ALIKE[role], "used", Sizes(*one)) for one in sizes]
        for i, (made, wiring, one) in enumerate(tried):
            seed = start + 20 * number + i
            make = partial(_built, role, made, one, seed, hidden=bool(i % 2), wiring=wiring)
            name = f"decoy {wiring} {_named(role, made, one)}"
            found.append(LanguageSubject(name, make, seed, decoy=True))
    return found


def _models(tuning: bool, start: int) -> Iterator[tuple[str, Callable[[], Built], int, bool]]:
    for number, ((role, kind), sizes) in enumerate((_TUNED if tuning else _SCORED).items()):
        for i, one in enumerate(Sizes(*size) for size in sizes):
            for hidden in (False, True):
                seed = start + 20 * number + 2 * i + hidden
                make = partial(_built, role, kind, one, seed, hidden=hidden, wiring="used")
                yield _named(role, kind, one), make, seed, hidden


def _named(role: str, kind: str, sizes: Sizes) -> str:
    return f"{role} {kind}-{sizes.vocabulary}-{sizes.length}-{sizes.heads}"


def _built(role: str, kind: str, sizes: Sizes, seed: int, *, hidden: bool, wiring: str) -> Built:
    model, parts = PLANTED[role](kind, sizes, seed, wiring)
    made = Construction(role, None, model, Mechanism(tuple(parts)), Certificate(inf, {}, "none"))
    if hidden:
        made = random_basis(made, seed)
        with_gains(made.model, seed)
    truth, exempt = set[Claim](), set[Claim]()
    for part in made.mechanism.parts:
        name, head = part.role.removeprefix("unscored:"), -1 if part.head is None else part.head
        scored = wiring == "used" and name == part.role
        (truth if scored else exempt).add((part.component, part.layer, head, name, part.target))
    if wiring != "used":
        exempt = set()
    return Built(made.model, frozenset(truth), frozenset(exempt), 0 if sizes.bos else -1)


def _places(sizes: Sizes, seed: int, layers: int) -> list[int]:
    """The number of the head with a job, of each layer."""
    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(sizes.heads, (1,), generator=generator)) for _ in range(layers)]
