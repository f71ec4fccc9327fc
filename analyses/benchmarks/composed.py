"""Language models in which a head reads what an earlier head wrote for it.

    virtual-copying     lags        an earlier head fetches the token b positions before, a later
                                    one what that wrote a positions before: on rows in which the
                                    token a + b positions before comes next
                        taken-back  that token is predicted wrongly, and lowered by the two
                        found       the later head finds its keys as below
    composed-equality   found       keys at which an earlier head fetched the query's token, two
                                    positions before; another fetched what comes next (K)
                        pairs       keys as before; on rows in which what stands there comes next
                                    (K)
                        looked-for  an earlier head fetches the token some positions before the
                                    query, which is predicted wrongly; a later one looks for it and
                                    lowers it (Q)

In every model with room for it another early head fetches the same, and is not read: the claim
names the one that is. Decoys differ from these models in one thing (``unread``, ``silent``,
``constant``: :mod:`analyses.benchmarks.by_content`), or are something else:

    window    the later head attends to the token itself, as well as to where it was fetched, and
              raises it; nobody reads what was fetched
    own       what the earlier head fetches stands where it is read
    pointed   the later head attends two positions after an earlier equal token, by that one's
              position; what an early head fetched there is the query's token, and not read
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import log, sqrt

import torch
from torch import Tensor

from analyses.benchmarks.by_content import finish_model, lookup_rule
from analyses.benchmarks.circuits import CircuitLayout, Sizes, by_lag
from analyses.benchmarks.known import Built, LanguageSubject
from analyses.benchmarks.needed import blank, write_head
from prooflens.architectures import SequenceTransformer
from prooflens.proofs import Part
from prooflens.tasks import Batch, RepeatedTokens

__all__ = ["decoys", "subjects"]

_PUSH = 6.0
"""Number of nats by which a wrong prediction raises a logit."""

_UNREAD = 0.3
"""Factor on what is written into coordinates that nothing reads. It is small, so that norms hardly
differ."""

_READ = "unscored:read by "
"""Prefix of the role of a head whose output is read by a head with the role that follows. It is not
scored."""

_LAGS = ((1, 2), (2, 1), (0, 2))
"""How far the later head looks back, and how far the earlier one; the seed chooses the pair."""

_V, _EQUAL = "virtual-copying", "composed-equality"
_OPEN = ("previous-token", "positional", "copying", "duplicate-token", "bos-gated", "sink")
"""Roles that are exempt from scoring for all heads of these models."""

_FAINT = 0.1
"""Factor on a decoy's answer that nothing reads, or that is the same from every key."""

Made = tuple[SequenceTransformer, list[Part]]


class _Model:
    """Writes the weights of a two-layer model head by head; heads get their jobs in a random
    order."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.layout, self.sizes = CircuitLayout(sizes), sizes
        self.model = blank(self.layout, 2, seed)
        generator = torch.Generator().manual_seed(seed)
        self.order: list[list[int]] = [
            torch.randperm(sizes.heads, generator=generator).tolist() for _ in range(2)
        ]
        self._next = [0, 0]

    def head(
        self,
        layer: int,
        rule: tuple[Tensor, Tensor],
        read: Tensor,
        write: Tensor,
        factor: float = 1.0,
    ) -> int:
        """Give the next free head of a layer a rule of attention and a write; return the head's
        number.

        Args:
            layer: The layer.
            rule: Queries and keys.
            read: The block that is read at the keys.
            write: The block that it is written into.
            factor: Factor on what is written.
        """
        place = self.order[layer][self._next[layer]]
        self._next[layer] += 1
        start = 0 if read is self.layout.positions else int(self.sizes.bos)
        values = [(read[:, start:], write[:, start:], factor)]
        write_head(self.model, layer, place, rule, values)
        return place

    def reader(
        self, rule: tuple[Tensor, Tensor], read: Tensor, wiring: str, factor: float = 1.0
    ) -> int:
        """Let a head of the second layer read what the first layer wrote and write the answer;
        return its number."""
        write = self.layout.answer
        if wiring == "unread":
            write = self.slot
        if wiring == "constant":
            write = write.mean(1, keepdim=True).expand(write.shape)
        factor *= {"used": 1.0, "silent": 0.0}.get(wiring, _FAINT)
        return self.head(1, rule, read, write, factor)

    @property
    def slot(self) -> Tensor:
        """The block into which a token is written for a later head."""
        return self.layout.slot[:, : self.sizes.vocabulary]

    def lag(self, layer: int, back: int, read: Tensor, write: Tensor, factor: float = 1.0) -> int:
        """Do the same as :meth:`head`, for a head that attends ``back`` positions back."""
        rule = by_lag(lambda lag: lag == back)(self.layout)
        return self.head(layer, rule, read, write, factor)

    def imitators(self, back: int) -> None:
        """Let one head of the first layer without a job, if there is one, attend ``back`` positions
        back and write what nothing reads."""
        if self._next[0] < self.sizes.heads:
            self.lag(0, back, self.layout.tokens, self.layout.unread, _UNREAD)

    def model_and_parts(self, reader: int, read: Mapping[str, tuple[str, int]]) -> Made:
        """Return the model and its mechanism.

        Args:
            reader: The head of the second layer that reads earlier heads.
            read: Role of the reader → (how its target begins, the head of the first layer that it
                reads).
        """
        parts = [Part("head", 1, reader, role, begins) for role, (begins, _) in read.items()]
        parts += [Part("head", 0, head, _READ + role, "") for role, (_, head) in read.items()]
        for layer in range(2):
            for head in range(self.sizes.heads):
                parts += [Part("head", layer, head, f"unscored:{role}", "") for role in _OPEN]
        return self.model, parts


def _says(made: _Model, push: float) -> None:
    """Set the unembedding so that it reads the answer."""
    made.model.unembed.W_U.copy_(sqrt(4 / made.layout.width) * push * made.layout.answer)


def _wins(sizes: Sizes) -> float:
    return log(sizes.vocabulary) + 3


@torch.no_grad()
def _relaying(kind: str, sizes: Sizes, seed: int, wiring: str) -> Made:
    """Build a model with virtual copying, or one that looks alike."""
    made = _Model(sizes, seed)
    layout, (ahead, back) = made.layout, _LAGS[seed % 3]
    if kind == "own":
        back = 0
    writer = made.lag(0, back, layout.tokens, layout.unread if kind == "window" else made.slot)
    there = by_lag(lambda lag: lag == ahead)(layout)
    if kind == "window":
        there = by_lag(lambda lag: (lag == ahead) | (lag == ahead + back))(layout)
    if kind == "taken-back":
        made.lag(0, ahead + back, layout.tokens, layout.answer)
        _says(made, _PUSH)
        reader = made.reader(there, made.slot, wiring, -1.0)
    else:
        _says(made, _wins(sizes))
        read = layout.tokens if kind == "window" else made.slot
        reader = made.reader(there, read, wiring, 2.0 if kind == "window" else 1.0)
    if kind != "window":
        made.imitators(back)
    return made.model_and_parts(reader, {} if kind in _ALIKE else {_V: ("", writer)})


@torch.no_grad()
def _lookup(kind: str, sizes: Sizes, seed: int, wiring: str) -> Made:
    """Build a model in which one earlier head finds the keys, and the token that another head wrote
    there is relayed."""
    made = _Model(sizes, seed)
    finder = made.lag(0, 2, made.layout.tokens, made.layout.unread)
    writer = made.lag(0, 1, made.layout.tokens, made.slot)
    _says(made, _wins(sizes))
    rule = lookup_rule(made.layout, made.layout.tokens, made.layout.unread)
    reader = made.reader(rule, made.slot, wiring)
    return made.model_and_parts(reader, {_V: ("", writer), _EQUAL: ("K ", finder)})


@torch.no_grad()
def _comparing(kind: str, sizes: Sizes, seed: int, wiring: str) -> Made:
    """Build a model with composed equality, or one that looks alike."""
    made, back = _Model(sizes, seed), 2 + seed % 2
    layout = made.layout
    if kind == "pairs":
        back = 2
        finder = made.lag(0, back, layout.tokens, made.slot)
        rule = lookup_rule(layout, layout.tokens, made.slot)
        reader = made.reader(rule, layout.tokens, wiring)
        _says(made, _wins(sizes))
    elif kind == "pointed":
        back, n = 2, sizes.length
        made.head(0, _same(layout), layout.positions, layout.slot)
        reader = made.reader(
            (layout.slot[:, : n - 2], layout.positions[:, 2:]), layout.tokens, wiring
        )
        _says(made, _wins(sizes))
    else:
        finder = made.lag(0, back, layout.tokens, made.slot)
        made.lag(0, back, layout.tokens, layout.answer)
        reader = made.reader(
            lookup_rule(layout, made.slot, layout.tokens), layout.tokens, wiring, -1.0
        )
        _says(made, _PUSH)
    made.imitators(back)
    if kind in _ALIKE:
        return made.model_and_parts(reader, {})
    return made.model_and_parts(reader, {_EQUAL: ("K " if kind == "pairs" else "Q ", finder)})


def _same(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    """Return queries and keys for attention to equal tokens at other positions, and to the first
    position if there are none."""
    queries, keys = lookup_rule(layout, layout.tokens, layout.tokens)
    own = layout.positions
    return torch.cat([queries, own], dim=1), torch.cat([keys, -2 * own], dim=1)


def _periodic(kind: str, sizes: Sizes, seed: int) -> Batch:
    """Return rows in which the next token is the one that the two heads together fetch."""
    period, bos = sum(_LAGS[seed % 3]) + 1, 0 if sizes.bos else -1
    task = RepeatedTokens(sizes.vocabulary, sizes.length, (period, period), bos=bos)
    return task.sample(32, seed=seed)


def _pairs(kind: str, sizes: Sizes, seed: int) -> Batch:
    """Return rows with triples (a, f, b) followed by the pairs (a, b) in another order; b is to be
    predicted."""
    first, generator = int(sizes.bos), torch.Generator().manual_seed(seed)
    count = min((sizes.length + 1 - first) // 5, (sizes.vocabulary - first) // 3)
    rows = []
    for _ in range(32):
        drawn = torch.randperm(sizes.vocabulary - first, generator=generator)[: 3 * count] + first
        triples = drawn.view(count, 3)
        pairs = triples[torch.randperm(count, generator=generator)][:, [0, 2]]
        rows.append(torch.cat([torch.zeros(first).long(), triples.flatten(), pairs.flatten()]))
    tokens = torch.stack(rows)
    place = torch.arange(tokens.shape[1] - 1) - first - 3 * count
    scored = ((place >= 0) & (place % 2 == 0)).expand(32, -1)
    return Batch(tokens[:, :-1], tokens[:, 1:], scored)


_MADE: Mapping[str, Callable[[str, Sizes, int, str], Made]] = {
    "lags": _relaying,
    "taken-back": _relaying,
    "found": _lookup,
    "pairs": _comparing,
    "looked-for": _comparing,
    "window": _relaying,
    "own": _relaying,
    "pointed": _comparing,
}
_ROWS: Mapping[str, Callable[[str, Sizes, int], Batch]] = {
    "lags": _periodic,
    "pairs": _pairs,
    "window": _periodic,
    "pointed": _pairs,
}
"""Kinds of models that need rows of their own → the function that draws them. These models are of
no use on other rows."""

_SCORED: Mapping[str, tuple[tuple[int, int, int, bool], ...]] = {
    "lags": ((14, 24, 2, True), (20, 28, 3, False), (26, 22, 1, True)),
    "taken-back": ((12, 24, 2, True), (16, 28, 3, False), (22, 30, 4, True)),
    "found": ((14, 26, 2, True), (20, 24, 3, False), (24, 30, 4, True)),
    "pairs": ((18, 28, 2, True), (24, 32, 3, False), (20, 26, 1, True)),
    "looked-for": ((12, 26, 2, True), (15, 30, 3, False), (18, 28, 4, True)),
    "window": ((15, 26, 2, True), (18, 24, 3, False)),
    "own": ((14, 25, 2, True), (17, 27, 3, False)),
    "pointed": ((14, 24, 2, True), (18, 28, 3, False)),
}
_TUNED: Mapping[str, tuple[tuple[int, int, int, bool], ...]] = {
    "lags": ((15, 25, 2, True), (18, 23, 3, False)),
    "taken-back": ((13, 25, 2, True), (17, 27, 3, False)),
    "found": ((15, 27, 2, True), (18, 25, 3, False)),
    "pairs": ((19, 29, 2, True), (22, 30, 3, False)),
    "looked-for": ((13, 27, 2, True), (16, 29, 3, False)),
    "window": ((16, 25, 2, True),),
    "own": ((13, 24, 2, False),),
    "pointed": ((15, 25, 2, True),),
}
"""Kind → sizes of its models: vocabulary, length, heads per layer, and whether token 0 begins every
row."""

_ALIKE = ("window", "own", "pointed")
"""Kinds of decoys, which look like models with the role and do something else."""

_WIRINGS = ("unread", "silent", "constant")


def subjects(*, tuning: bool = False) -> list[LanguageSubject]:
    """Return every model with the roles, as it is and in a random basis with random gains."""
    start, found = 2_000 if tuning else 67_000, []
    for number, (kind, sizes) in enumerate((_TUNED if tuning else _SCORED).items()):
        if kind in _ALIKE:
            continue
        for i, one in enumerate(sizes):
            for hidden in (False, True):
                seed = start + 20 * number + 2 * i + hidden
                found.append(_subject(kind, "used", Sizes(*one), seed, hidden=hidden))
    return found


def decoys(*, tuning: bool = False) -> list[LanguageSubject]:
    """Return the decoys: the same models with an answer that has no effect, and models that look
    alike."""
    start, found = 2_500 if tuning else 69_000, []
    for number, (kind, sizes) in enumerate((_TUNED if tuning else _SCORED).items()):
        tried = [(wiring, Sizes(*sizes[0])) for wiring in _WIRINGS]
        if kind in _ALIKE:
            tried = [("used", Sizes(*one)) for one in sizes]
        for i, (wiring, one) in enumerate(tried):
            seed = start + 20 * number + i
            found.append(_subject(kind, wiring, one, seed, hidden=bool(i % 2), decoy=True))
    return found


def _subject(
    kind: str, wiring: str, sizes: Sizes, seed: int, *, hidden: bool, decoy: bool = False
) -> LanguageSubject:
    make = partial(_build, kind, wiring, sizes, seed, hidden=hidden)
    own = _ROWS.get(kind)
    rows = None if own is None else partial(own, kind, sizes, seed)
    shape = f"{kind}-{sizes.vocabulary}-{sizes.length}-{sizes.heads}"
    name = f"decoy {wiring} composed {shape}" if decoy else f"language composed {shape}"
    return LanguageSubject(name + " hidden" * (hidden and not decoy), make, seed, decoy, rows=rows)


def _build(kind: str, wiring: str, sizes: Sizes, seed: int, *, hidden: bool) -> Built:
    model, parts = _MADE[kind](kind, sizes, seed, wiring)
    built = finish_model(model, parts, sizes, seed, hidden=hidden, wiring=wiring)
    begins = _READ.removeprefix("unscored:")
    read = {c[3].removeprefix(begins): c[2] for c in built.exempt if c[3].startswith(begins)}
    truth = frozenset((*c[:4], f"{c[4]}L0H{read[c[3]]}") for c in built.truth)
    return replace(built, truth=truth)
