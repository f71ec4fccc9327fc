"""Roles of heads that are told by where they attend.

    role              behaviour: share of attention                        cause: without …
    previous-token    to t − 1                                             that attention
    duplicate-token   to earlier equal tokens, not itself; repeated rows   that attention
    induction         to tokens after earlier equal ones; repeated rows    that attention, *and* the
                      mass falls without an earlier previous-token head;
                      where targets may be read, the loss rises, too
    sink              to the first position                                that attention
    local             to the last few positions, neither t nor t − 1 alone that attention
    counter           even over all earlier positions                      the head, and steeply
    dense             uneven, and none of these (nor its own position)     the head, likewise

Shares are those of :mod:`interp.heads.content`, with their analytic nulls, over the later half of
positions; changes are shares of the output's variance (:mod:`probes.roles.effects`), over the later
half too, but for counters, over all. Repeated rows
are made of the tokens that the inputs hold, each row with its own period.

Untrained heads attend evenly too, or unevenly in no way that has a name, and where nothing but the
average is left of a row, as in narrow networks, they matter as well. Counters and dense heads have
fresh models for a null (:mod:`probes.roles.fresh`).

Not for attention that is not normalised: a share is not defined there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.heads.classes import position_classes, repeated_tokens, token_classes
from interp.heads.content import AttentionMass
from interp.heads.effects import Component, components
from interp.heads.reading import layer_hooks, read_batches
from interp.heads.visible import told_by_patterns, visible
from interp.store import ActivationStore
from interp.tasks.base import Batch
from probes.roles.decision import Found, Test
from probes.roles.effects import Change, Outputs, over_rows
from probes.roles.fresh import Fresh

__all__ = ["AttentionFloors", "attention_roles", "repeated_rows", "stored_roles"]

_ROWS = 32
_SHARE = ["layer", "head", "target", "score", "effect", "p", "low", "high"]
_SHORTEST = 9
_FEWEST = 4


@dataclass(frozen=True)
class AttentionFloors:
    """The least of each share, excess and change that counts.

    Attributes:
        share: Of attention on the role's keys.
        excess: Of that share over what even attention would give.
        even: Closeness to even attention, 1 − total variation.
        local: Share within the window.
        other: Most that may go to the own position, for roles that look elsewhere (1 − it).
        change: Of the output, as a share of its variance.
        loss: Rise of the loss, in nats or as a share of the targets' variance.
        composition: Fall of the induction share without a previous-token head.
        window: Positions that count as local, the query's own included.
    """

    share: float = 0.6
    excess: float = 0.3
    even: float = 0.9
    local: float = 0.9
    other: float = 0.8
    change: float = 0.1
    loss: float = 0.05
    composition: float = 0.3
    window: int = 5


@dataclass(frozen=True)
class _Share:
    """A share of attention, its excess over even attention, p, and the excess' interval."""

    score: float
    effect: float
    p: float
    low: float
    high: float

    def test(self, name: str, floor: float) -> Test:
        """The test that the share is at least the floor, and more than even attention gives."""
        even = self.score - self.effect
        return Test(name, self.score, floor, self.p, even + self.low, even + self.high)

    def beyond(self, floor: float) -> Test:
        """The test of its excess."""
        name = "of which beyond even attention"
        return Test(name, self.effect, floor, low=self.low, high=self.high)


_NO_KEYS = _Share(0.0, 0.0, 1.0, nan, nan)
"""Of a class that no query sees a key of, such as its own where that is masked."""

_Shares = dict[tuple[int, int, str], _Share]


def attention_roles(
    model: Any,
    batch: Batch,
    *,
    targets: bool = True,
    floors: AttentionFloors | None = None,
    seed: int = 0,
) -> list[Found]:
    """Every head's attention roles, tested.

    Args:
        model: With normalised attention; for others there is nothing to say.
        batch: Inputs ``[row, pos]`` (tokens) or ``[row, pos, channel]``, and where they are scored.
        targets: Whether its targets may be read: for induction, whose loss must rise.
        floors: The least that counts.
        seed: Of the repeated rows and of fresh models.
    """
    floors, spec = floors or AttentionFloors(), getattr(model, "spec", None)
    if spec is not None and spec.normalizer != "softmax":
        return []
    return list(_Detector(model, batch, targets, floors, seed).found())


def repeated_rows(inputs: Tensor, *, seed: int = 0) -> Int[Tensor, "row pos"] | None:
    """Rows like ``inputs`` that repeat, made of the same tokens; None for real or short inputs or
    few tokens. A token that stands first in every row and nowhere else stays there."""
    if inputs.ndim != 2 or inputs.shape[1] < _SHORTEST:
        return None
    first = inputs[:, 0].unique()
    seen = inputs[:, 1:].unique()
    alone = len(first) == 1 and not bool((seen == first).any())
    if len(seen) < _FEWEST:
        return None
    length = inputs.shape[1] - alone
    if length < _SHORTEST:
        return None
    rows = seen[repeated_tokens(len(inputs), length, len(seen), seed=seed)]
    return torch.cat([first.expand(len(rows), 1), rows], dim=1) if alone else rows


class _Detector:
    def __init__(
        self, model: Any, batch: Batch, targets: bool, floors: AttentionFloors, seed: int
    ) -> None:
        self.model, self.floors, self.seed = model, floors, seed
        self.batch, self.targets = batch, targets
        inputs, scored = batch.inputs, batch.mask
        self.inputs, seen = inputs, visible(model)
        self.causal = seen is None or seen.causal
        late = torch.arange(inputs.shape[1]) >= inputs.shape[1] // 2
        self.fresh = Fresh(model, inputs, scored, seed=seed)
        self.outputs = Outputs(
            model, inputs, scored & late if bool((scored & late).any()) else scored
        )
        self.whole = Outputs(model, inputs, scored)
        late = late.expand(inputs.shape[:2])
        self.shares = _measured(model, Batch(inputs, inputs, late), floors)
        repeated = repeated_rows(inputs, seed=seed)
        self.again: Outputs | None = None
        if repeated is not None:
            scored = token_classes(repeated, causal=self.causal)["same"].any(-1)
            self.again = Outputs(model, repeated, scored)
            again = Batch(repeated, repeated, scored)
            found = _measured(model, again, floors, null="tokens")
            self.shares |= {k: v for k, v in found.items() if k[2] in ("same", "after_same")}

    def found(self) -> Iterator[Found]:
        for part in components(self.model):
            if part.kind == "head":
                yield from self._of(part.layer, part.head)

    def _of(self, layer: int, head: int) -> Iterator[Found]:
        n = self.inputs.shape[1]
        classes = position_classes(1, n, self.floors.window, causal=self.causal)
        some = False
        for role, name in (("previous-token", "previous"), ("sink", "first"), ("local", "local")):
            tests = _behaviour(self.shares, layer, head, role, self.floors)
            some |= _holds(tests)
            cause: list[Test] = []
            if _holds(tests):
                change = self.outputs.knocked_out(layer, head, classes[name])
                cause = [self._cause("without that attention", change)]
            yield self._role(layer, head, role, tests, cause)
        for role, name in (("duplicate-token", "same"), ("induction", "after_same")):
            if (layer, head, name) in self.shares:
                tests = _behaviour(self.shares, layer, head, role, self.floors)
                some |= _holds(tests)
                cause = self._again(layer, head, role, name) if _holds(tests) else []
                yield self._role(layer, head, role, tests, cause)
        tests = _behaviour(self.shares, layer, head, "counter", self.floors)
        some |= _holds(tests)
        cause = self._matters(layer, head, self.whole, "gain") if _holds(tests) else []
        yield self._role(layer, head, "counter", tests, cause)
        own = self.shares[layer, head, "own"].score
        if not some and own < self.floors.share:
            away, floor = 1 - self.shares[layer, head, "uniform"].score, 1 - self.floors.even
            tests = [Test("distance from even attention", away, floor)]
            cause = self._matters(layer, head, self.outputs, "both") if _holds(tests) else []
            yield self._role(layer, head, "dense", tests, cause)

    def _cause(self, words: str, change: Change) -> Test:
        return change.test(
            f"{words} the output changes by a share of its variance of", self.floors.change
        )

    def _again(self, layer: int, head: int, role: str, name: str) -> list[Test]:
        """Knock-out on repeated rows, and for induction the composition."""
        if self.again is None:
            return []
        keys = token_classes(self.again.inputs, causal=self.causal)[name]
        change = self._cause("without that attention", self.again.knocked_out(layer, head, keys))
        if role == "duplicate-token":
            return [change]
        return [self._composition(layer, head, keys), *self._loss(layer, head), change]

    def _loss(self, layer: int, head: int) -> list[Test]:
        """That the head's attention is for the better, on the rows that have targets."""
        if not self.targets:
            return []
        keys = token_classes(self.inputs, causal=self.causal)["after_same"]
        found = self.whole.losing(layer, head, keys, self.batch)
        if found is None:
            name = "too few of these rows have a token twice before a scored position; loss:"
            return [Test(name, 0.0, self.floors.loss, 1.0, family="loss")]
        real = self.batch.targets.is_floating_point()
        unit = " a share of the targets' variance of" if real else ", in nats,"
        name = f"without that attention the loss on these rows rises by{unit}"
        return [found.test(name, self.floors.loss, "loss")]

    def _composition(self, layer: int, head: int, keys: Bool[Tensor, "row q k"]) -> Test:
        """The largest fall of the share when a previous-token head before it is ablated."""
        again = self.again
        best = Test("no earlier previous-token head to compose with:", 0.0, self.floors.composition)
        if again is None:
            return best
        before = _row_share(again, layer, head, keys, ())
        for part in components(self.model):
            earlier = part.kind == "head" and part.layer < layer
            if not earlier or self.shares[part.layer, part.head, "previous"].score < 0.5:
                continue
            fall = before - _row_share(again, layer, head, keys, (part,))
            if float(fall.mean()) > best.score:
                name = f"without {part.name}, a previous-token head, that share falls by"
                best = over_rows(fall).test(name, self.floors.composition, "composition")
        return best

    def _matters(
        self,
        layer: int,
        head: int,
        outputs: Outputs,
        score: Literal["gain", "both"],
    ) -> list[Test]:
        """Ablation, and where it changes enough, the head against fresh ones."""
        change = outputs.ablated(Component("head", layer, head))
        cause = self._cause("without the head", change)
        if change.score < self.floors.change:
            return [cause]
        against = self.fresh.gain if score == "gain" else self.fresh.both
        found = against(layer, head)
        name = f"{_FRESH[score]} (1 − p, against {found.draws} fresh heads)"
        return [Test(name, 1 - found.p, 0.95, found.p, family="fresh"), cause]

    def _role(
        self, layer: int, head: int, role: str, tests: list[Test], cause: list[Test]
    ) -> Found:
        strength = tests[0].score
        return Found("head", layer, role, strength, tests, cause, head=head)


_FRESH = {
    "gain": "steeper effect than in untrained models",
    "both": "more uneven and of steeper effect than in untrained models",
}
_KEYS = {
    "previous-token": ("previous", "share of attention to the previous token"),
    "sink": ("first", "share of attention to the first position"),
    "local": ("local", "share of attention to the last few positions"),
    "duplicate-token": ("same", "share of attention to earlier equal tokens, on repeated rows"),
    "induction": ("after_same", "share of attention to what followed equal tokens, repeated rows"),
    "counter": ("uniform", "closeness to even attention"),
}


def _behaviour(
    shares: _Shares, layer: int, head: int, role: str, floors: AttentionFloors
) -> list[Test]:
    keys, words = _KEYS[role]
    share = shares[layer, head, keys]
    if role == "counter":
        return [share.test(words, floors.even)]
    least = floors.local if role == "local" else floors.share
    tests = [share.test(words, least), share.beyond(floors.excess)]
    if role == "local":
        lags = ("own", "previous", *(f"lag {s}" for s in range(2, floors.window)))
        single = max(shares[layer, head, lag].score for lag in lags)
        tests.append(Test("kept from any one position", 1 - single, 1 - floors.share))
    if role == "duplicate-token":
        own = shares[layer, head, "own"].score
        tests.append(Test("attention kept from itself", 1 - own, floors.other))
    return tests


def _holds(tests: list[Test]) -> bool:
    return all(test.score >= test.floor for test in tests)


def _measured(
    source: Any,
    batch: Batch | None,
    floors: AttentionFloors,
    *,
    null: str = "positions",
) -> _Shares:
    """Shares of every head of a model on a batch, or in a store."""
    hooks = layer_hooks(source, "attn.hook_pattern")
    found, seen = AttentionMass(), visible(source)
    for rows in read_batches(source, batch, hooks, batch=_ROWS):
        patterns = {int(hook.split(".")[1]): value for hook, value in rows.activations.items()}
        seen = seen or told_by_patterns(patterns.values())
        found.causal, found.mask_self = seen.causal, seen.mask_self
        n = next(iter(patterns.values())).shape[-1]
        positions = position_classes(len(rows), n, floors.window, causal=seen.causal)
        lag = torch.arange(n)[:, None] - torch.arange(n)
        for s in range(2, floors.window):
            positions[f"lag {s}"] = (lag == s).expand(len(rows), -1, -1)
        tokens = rows.inputs.ndim == 2
        contents = token_classes(rows.inputs, causal=seen.causal) if tokens else {}
        found.add(patterns, positions, contents, rows.mask, rows.heads)
    table = found.table()
    columns = table.loc[table["circuit"] == null, _SHARE]
    return {
        (layer, head, target): _NO_KEYS if isnan(numbers[0]) else _Share(*numbers)
        for layer, head, target, *numbers in columns.itertuples(index=False, name=None)
    }


@torch.no_grad()
def _row_share(
    outputs: Outputs,
    layer: int,
    head: int,
    keys: Bool[Tensor, "row q k"],
    without: tuple[Component, ...],
) -> np.ndarray:
    """Share of a head's attention on ``keys``, row by row, with some components ablated."""
    name = f"blocks.{layer}.attn.hook_pattern"
    pattern = outputs.kept(name, *without)[:, head]
    weight = keys.any(-1).double()
    share = (pattern * keys).sum(-1) / pattern.sum(-1).clamp_min(1e-12)
    rows: np.ndarray = ((share * weight).sum(1) / weight.sum(1).clamp_min(1)).cpu().numpy()
    return rows


def stored_roles(store: ActivationStore, *, floors: AttentionFloors | None = None) -> list[Found]:
    """The behaviour of every head in a store's patterns; no cause can be sought there.

    Args:
        store: With ``attn.hook_pattern`` of the layers of interest. ``duplicate-token`` and
            ``induction`` are read from the rows as they are: without repeats they find nothing.
        floors: The least that counts.
    """
    floors = floors or AttentionFloors()
    shares = _measured(store, None, floors)
    found = []
    for layer, head in sorted({key[:2] for key in shares}):
        for role, (name, _) in _KEYS.items():
            if (layer, head, name) in shares:
                tests = _behaviour(shares, layer, head, role, floors)
                found.append(Found("head", layer, role, tests[0].score, tests, None, head=head))
    return found
