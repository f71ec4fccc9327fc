"""Language models with one head whose role depends on more than where it looks.

    copy-suppression   g is a permutation of the tokens, and g(x) is predicted wrongly after x: by
                       the unembedding (``bigram``), or by a head that looks for g(x) and raises it
                       (``looked-up``). A head looks for what is predicted and lowers it

    successor          f is a map of the tokens: the next (``next``), or a permutation (``map``).
                       A head attends to the token before and raises its image, on rows in which
                       the image comes two positions later; or f(x) is predicted wrongly after x,
                       and a head at x lowers it (``taken-back``)
    bos-gated          the query's own token is predicted wrongly, after some tokens (``class``) or
                       all. There, or where the token came before (``came-before``), a head takes it
                       back; elsewhere it rests on the first position

Every model has idle heads beside it, and decoys differ from it in one thing:

    unread, silent, constant   the attention of the circuit, whose answer is not read, not written,
                               or the same from every key
    previous                   the token before is predicted; a head attends there by position and
                               lowers it
    copy, random               the map is the identity; what is predicted wrongly after x, and taken
                               back, is a random number for every token
    beside                     a head that takes back such numbers, and raises x a little, which is
                               not the answer: it copies, and is not needed for that
    half                       half of the attention is on the first position at every query

Layouts, attention and values are those of :mod:`analyses.benchmarks.circuits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, log, sqrt

import torch
from jaxtyping import Int
from torch import Tensor

from analyses.benchmarks.circuits import CircuitLayout, Sizes, by_lag, with_gains
from analyses.benchmarks.known import Built, Claim, LanguageSubject
from analyses.benchmarks.needed import blank, own_and_first, write_head
from prooflens.architectures import SequenceTransformer
from prooflens.proofs import Certificate, Construction, Mechanism, Part, random_basis
from prooflens.tasks import Batch

__all__ = ["PLANTED", "decoys", "finish_model", "lookup_rule", "subjects"]

_PUSH = 6.0
"""Number of nats by which a wrong prediction raises a logit."""

_FAINT = 0.1
"""Factor on what a decoy's head writes if nothing reads it or it is the same from every key. It is
too small to change a norm."""

_BESIDE = 0.2
"""Factor, as a share of a push, by which the head of this kind of decoy raises the logit of the
token that it attends to."""

Value = tuple[Tensor, Tensor, float]


def _permutation(sizes: Sizes, seed: int) -> Int[Tensor, " token"]:
    """Return a permutation of the tokens that is one cycle, without fixed points. Only the token
    that begins every row, if there is one, stays fixed."""
    order = torch.randperm(
        sizes.vocabulary - sizes.bos, generator=torch.Generator().manual_seed(seed)
    )
    order = order + int(sizes.bos)
    image = torch.arange(sizes.vocabulary)
    image[order] = order.roll(-1)
    return image


def lookup_rule(layout: CircuitLayout, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rule of a head that attends to positions whose ``key`` block equals the query's
    ``query`` block, and to the first position if there are none."""
    every = layout.tokens.sum(1, keepdim=True)
    queries = torch.cat([query, 0.5 * every], dim=1)
    return queries, torch.cat([key, layout.positions[:, :1]], dim=1)


def _values(layout: CircuitLayout, written: Tensor, wiring: str, factor: float) -> list[Value]:
    """Return what a head reads, writes, and with which factor. A token that begins every row is not
    written."""
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
    layout, places = CircuitLayout(sizes), _places(sizes, seed, 2)
    image, model = _permutation(sizes, seed), blank(layout, 1 if kind == "bigram" else 2, seed)
    own, answer = layout.tokens, layout.answer
    scale = sqrt(3 / layout.width) * _PUSH
    if kind == "bigram":
        moved = own[:, image.argsort()]  # the column of g(x) is the coordinate of x
        values = _values(layout, moved, wiring, -1.0)
        write_head(model, 0, places[0], lookup_rule(layout, moved, own), values)
        model.unembed.W_U.copy_(scale * moved)
        return model, [Part("head", 0, places[0], role, "") for role in _SUPPRESSES]
    before = by_lag(lambda lag: lag == 1)(layout)
    finds = before if kind == "previous" else lookup_rule(layout, own[:, image.argsort()], own)
    suppresses = before if kind == "previous" else lookup_rule(layout, answer, own)
    write_head(model, 0, places[0], finds, _values(layout, answer, "used", 1.0))
    write_head(model, 1, places[1], suppresses, _values(layout, answer, wiring, -1.0))
    model.unembed.W_U.copy_(scale * answer)
    told = (*_SUPPRESSES, "unscored:composed-equality")
    parts = [Part("head", 1, places[1], role, "") for role in told]
    if kind == "previous":
        parts = [
            Part("head", layer, place, f"unscored:{role}", "")
            for layer, place in enumerate(places)
            for role in ("previous-token", "copying")
        ]
    return model, [*parts, Part("head", 0, places[0], "unscored:copying", "")]


@torch.no_grad()
def _successor(
    kind: str, sizes: Sizes, seed: int, wiring: str
) -> tuple[SequenceTransformer, list[Part]]:
    layout, (place,) = CircuitLayout(sizes), _places(sizes, seed, 1)
    own, answer, model = layout.tokens, layout.answer, blank(layout, 1, seed)
    scale, image = sqrt(3 / layout.width), _image(kind, sizes, seed)
    looks = "previous-token"
    if kind in ("taken-back", "random", "beside"):
        pushed, written = own[:, image.argsort()], own  # the column of f(x) is the coordinate of x
        if kind != "taken-back":
            generator = torch.Generator().manual_seed(seed)
            mixed = torch.randn(2 * (sizes.vocabulary,), generator=generator, dtype=torch.float64)
            pushed = own @ (mixed / 2)
        if kind == "beside":
            pushed = own @ (mixed / 2).fill_diagonal_(0) + answer
            written = own - _BESIDE * answer
        rule, looks = by_lag(lambda lag: lag == 0)(layout), "positional"
        write_head(model, 0, place, rule, _values(layout, written, wiring, -1.0))
        model.unembed.W_U.copy_(scale * _PUSH * pushed)
    else:
        values = _values(layout, answer[:, image], wiring, 1.0)
        write_head(model, 0, place, by_lag(lambda lag: lag == 1)(layout), values)
        model.unembed.W_U.copy_(scale * (log(sizes.vocabulary) + 3) * answer)
    if kind in ("copy", "random", "beside"):
        told = [looks, *(["copying"] if kind == "copy" else [])]
        return model, [Part("head", 0, place, f"unscored:{role}", "") for role in told]
    target = "+1" if kind == "next" else "map"
    return model, [Part("head", 0, place, "successor", target), Part("head", 0, place, looks, "")]


def _image(kind: str, sizes: Sizes, seed: int) -> Int[Tensor, " token"]:
    """Return the map of tokens that a kind of model computes."""
    every = torch.arange(sizes.vocabulary)
    if kind == "copy":
        return every
    first = int(sizes.bos)
    following = (every - first + 1) % (sizes.vocabulary - first) + first
    return following if kind == "next" else _permutation(sizes, seed)


def _chains(kind: str, sizes: Sizes, seed: int) -> Batch:
    """Return rows in which each token's image comes two positions later."""
    image, first = _image(kind, sizes, seed), int(sizes.bos)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(first, sizes.vocabulary, (32, 2), generator=generator)
    found = [torch.zeros(32, dtype=torch.long)] * first + [*drawn.unbind(1)]
    while len(found) <= sizes.length:
        found.append(image[found[-2]])
    rows = torch.stack(found, dim=1)
    scored = (torch.arange(sizes.length) > first).expand(32, -1)
    return Batch(rows[:, :-1], rows[:, 1:], scored)


@torch.no_grad()
def _construct_gate(
    kind: str, sizes: Sizes, seed: int, wiring: str
) -> tuple[SequenceTransformer, list[Part]]:
    layout, (place,) = CircuitLayout(sizes), _places(sizes, seed, 1)
    own, at, model = layout.tokens, layout.positions, blank(layout, 1, seed)
    order = torch.randperm(sizes.vocabulary, generator=torch.Generator().manual_seed(seed))
    waits = torch.zeros(sizes.vocabulary).double().index_fill(0, order[::2], 1)
    rule = own_and_first(layout)
    told = [f"unscored:{role}" for role in ("sink", "copying", "positional")]
    if kind == "class":
        rests = 2 * (own * (1 - waits)).sum(1, keepdim=True)
        rule = torch.cat([at, rests], dim=1), torch.cat([at, at[:, :1]], dim=1)
        told.append("bos-gated")
    if kind == "came-before":
        every = 0.5 * own.sum(1, keepdim=True)
        rule = torch.cat([own, at, every], dim=1), torch.cat([own, -2 * at, at[:, :1]], dim=1)
        told = ["bos-gated", "duplicate-token", "copying", "unscored:sink"]
    factor = -2.0 if kind == "half" else -1.0
    write_head(model, 0, place, rule, _values(layout, own, wiring, factor))
    pushed = own * waits if kind == "class" else own
    model.unembed.W_U.copy_(sqrt(3 / layout.width) * _PUSH * pushed)
    return model, [Part("head", 0, place, role, "") for role in told]


_SUPPRESSES = ("copy-suppression", "copying")
PLANTED: Mapping[str, Callable[[str, Sizes, int, str], tuple[SequenceTransformer, list[Part]]]] = {
    "copy-suppression": _suppression,
    "successor": _successor,
    "bos-gated": _construct_gate,
}
"""Role → the function that builds its models: from kind, sizes, seed and wiring to the model and
the parts with a role."""

_CHAINED = ("next", "map")
"""Kinds of models that need rows of their own: their circuits lower the loss on no others."""

_SCORED: Mapping[tuple[str, str], tuple[tuple[int, int, int, bool], ...]] = {
    ("copy-suppression", "bigram"): ((11, 24, 2, True), (14, 28, 3, True), (12, 30, 1, True)),
    ("copy-suppression", "looked-up"): ((12, 26, 2, True), (15, 30, 3, True), (13, 28, 1, True)),
    ("successor", "next"): ((16, 24, 2, False), (24, 30, 3, True), (12, 20, 1, False)),
    ("successor", "map"): ((18, 22, 2, True), (30, 28, 3, False), (11, 26, 1, False)),
    ("successor", "taken-back"): ((12, 24, 2, False), (20, 26, 3, False), (15, 22, 1, True)),
    ("bos-gated", "class"): ((14, 24, 2, True), (22, 28, 3, True), (12, 20, 1, True)),
    ("bos-gated", "came-before"): ((13, 26, 2, True), (18, 22, 3, True), (24, 30, 1, True)),
}
_TUNED: Mapping[tuple[str, str], tuple[tuple[int, int, int, bool], ...]] = {
    ("copy-suppression", "bigram"): ((13, 26, 2, True),),
    ("copy-suppression", "looked-up"): ((14, 27, 2, True),),
    ("successor", "next"): ((19, 25, 2, True),),
    ("successor", "map"): ((17, 23, 2, False),),
    ("successor", "taken-back"): ((14, 25, 2, False),),
    ("bos-gated", "class"): ((15, 25, 2, True),),
    ("bos-gated", "came-before"): ((16, 24, 2, True),),
}
"""(Role, kind) → sizes of its models: vocabulary, length, heads per layer, and whether token 0
begins every row."""

_ALIKE: Mapping[str, tuple[str, ...]] = {
    "copy-suppression": ("previous",),
    "successor": ("copy", "random", "beside"),
    "bos-gated": ("half",),
}
"""Role → kinds of decoys for it, which look like models with the role and do something else."""

_WIRINGS = ("unread", "silent", "constant")


def subjects(*, tuning: bool = False) -> list[LanguageSubject]:
    """Return every model with the roles, as it is and in a random basis with random gains."""
    start, found = 1_000 if tuning else 61_000, []
    for number, ((role, kind), sizes) in enumerate((_TUNED if tuning else _SCORED).items()):
        for i, one in enumerate(Sizes(*size) for size in sizes):
            for hidden in (False, True):
                seed = start + 20 * number + 2 * i + hidden
                make = partial(_build, role, kind, one, seed, hidden=hidden, wiring="used")
                name = f"language {_name_of(role, kind, one)}{' hidden' * hidden}"
                own = partial(_chains, kind, one, seed) if kind in _CHAINED else None
                found.append(LanguageSubject(name, make, seed, rows=own))
    return found


def decoys(*, tuning: bool = False) -> list[LanguageSubject]:
    """Return the decoys: the same attention with an answer that has no effect, and models that look
    alike."""
    start, found = 1_500 if tuning else 65_000, []
    cases = list((_TUNED if tuning else _SCORED).items())
    for number, ((role, kind), sizes) in enumerate(cases):
        wirings = _WIRINGS[number % 3 :][:1] if tuning else _WIRINGS
        tried = [(kind, wiring, Sizes(*one)) for wiring in wirings for one in sizes[:1]]
        if (role, kind) == next(key for key, _ in cases if key[0] == role):
            tried += [(alike, "used", Sizes(*one)) for alike in _ALIKE[role] for one in sizes]
        for i, (made, wiring, one) in enumerate(tried):
            seed = start + 20 * number + i
            make = partial(_build, role, made, one, seed, hidden=bool(i % 2), wiring=wiring)
            name = f"decoy {wiring} {_name_of(role, made, one)}"
            own = partial(_chains, made, one, seed) if made in _CHAINED else None
            found.append(LanguageSubject(name, make, seed, decoy=True, rows=own))
    return found


def _name_of(role: str, kind: str, sizes: Sizes) -> str:
    return f"{role} {kind}-{sizes.vocabulary}-{sizes.length}-{sizes.heads}"


def _build(role: str, kind: str, sizes: Sizes, seed: int, *, hidden: bool, wiring: str) -> Built:
    model, parts = PLANTED[role](kind, sizes, seed, wiring)
    return finish_model(model, parts, sizes, seed, hidden=hidden, wiring=wiring)


def finish_model(
    model: SequenceTransformer,
    parts: Sequence[Part],
    sizes: Sizes,
    seed: int,
    *,
    hidden: bool,
    wiring: str,
) -> Built:
    """Return a model with its known roles, in a random basis with random gains if it is hidden."""
    made = Construction("", None, model, Mechanism(tuple(parts)), Certificate(inf, {}, "none"))
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
    """Return, for each layer, the number of the head that gets a job."""
    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(sizes.heads, (1,), generator=generator)) for _ in range(layers)]
