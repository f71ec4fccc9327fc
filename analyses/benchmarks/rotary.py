"""Circuits that are written down, in the formats of Llama and of Pythia: no position is added.

    residual coordinates   tokens ⊕ slot ⊕ unread ⊕ answer, the first one-hot
    content                one-hot entries in coordinates of a head that hardly turn (Llama) or do
                           not turn (Pythia, of whose coordinates a share turns)
    lag                    a query that is the same everywhere, turned by its place, against keys
                           that are the same everywhere and begin ``lag`` steps further on:

        score(i, j) = Σ_f A cos(θ_f (i − j − lag)),    A < 0 keeps a head away from a lag

What the formats are is told in :mod:`analyses.benchmarks.rotary_formats`. Every token's entries sum
to one, and that sum is the constant that lags are read from. The rules of attention are those of
:mod:`analyses.benchmarks.circuits` as far as they can be said without positions: the token before,
earlier equal tokens (else BOS), what follows them, BOS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any

import torch
from torch import Tensor

from analyses.benchmarks.circuits import Wiring
from analyses.benchmarks.known import Claim
from analyses.benchmarks.needed import all_but
from analyses.benchmarks.rotary_formats import (
    BASE,
    Matrices,
    RotarySizes,
    empty,
    model_from_matrices,
    turning,
)

__all__ = [
    "ROTARY",
    "ROTARY_NEEDED",
    "construct_rotary",
    "construct_rotary_needed",
    "untrained_model",
]


_SHARP = 40.0
"""About how much higher the score of a key that a rule selects is than the scores of others."""

_FAINT = 0.5
"""Number of nats by which a decoy's logits differ."""

_UNREAD = 0.1
"""Factor on what is written into coordinates that nothing reads."""

_NEVER = 10.0
"""Number of nats by which BOS, which never comes again, is made less likely than every other
token."""

_SEEKING, _AVOIDING = 0.02, 0.09
"""Smallest angle per position of the rotary coordinates that tell lags apart: for rules that attend
to a lag, and for those that avoid one. Slow coordinates keep far lags apart. They are left out
where only the lag itself is to be avoided."""


@dataclass(frozen=True)
class _Rule:
    """A rule of attention: scores for content, for a lag, and for BOS.

    Attributes:
        query, key: The blocks whose one-hot entries must agree; both empty if content does not
            count.
        lag: The lag that is attended to or avoided.
        lagged: Strength of the lag, in units of a sharp score; below 0 the lag is avoided.
        first: Strength of BOS, in the same unit.
    """

    query: str = ""
    key: str = ""
    lag: float = 0
    lagged: float = 0.0
    first: float = 0.0


@dataclass(frozen=True)
class _RotaryHead:
    """What one head of a circuit does: its rule of attention, the block into which it writes the
    token that it attends to, and the roles that this amounts to."""

    rule: _Rule
    writes: str
    roles: tuple[str, ...]


_PREVIOUS = _Rule(lag=1, lagged=1.0)
_SAME = _Rule("tokens", "tokens", lag=0, lagged=-0.8, first=0.45)
_AFTER = _Rule("tokens", "slot", first=-0.5)
_FIRST = _Rule(first=1.0)

ROTARY: Mapping[str, tuple[tuple[_RotaryHead, ...], float]] = {
    "induction": (
        (
            _RotaryHead(_PREVIOUS, "slot", ("previous-token",)),
            _RotaryHead(_AFTER, "answer", ("induction", "copying")),
        ),
        1.0,
    ),
    "previous-copy": ((_RotaryHead(_PREVIOUS, "answer", ("previous-token", "copying")),), 1.0),
    "previous-negative": ((_RotaryHead(_PREVIOUS, "answer", ("previous-token", "copying")),), -1.0),
    "duplicate-negative": ((_RotaryHead(_SAME, "answer", ("duplicate-token", "copying")),), -1.0),
    "first-negative": ((_RotaryHead(_FIRST, "answer", ("sink",)),), -1.0),
}
"""Name of each circuit → the job of one head in each layer, and the sign with which the answer
changes its token's logit."""

ROTARY_NEEDED: Mapping[str, tuple[_Rule, float]] = {
    "previous-token": (_Rule(lag=0.5, lagged=1.0), 0.5),  # as near to lag 0 as to lag 1
    "duplicate-token": (_Rule("tokens", "tokens", lag=0, lagged=-0.3), 1.0),
}
"""Role that one head seems to have → the rule by which it attends, and the share of its attention
that takes back a wrong push on the query's token (as in :mod:`analyses.benchmarks.needed`)."""

_PUSH = 6.0
"""Number of nats by which the wrong push raises a logit."""


class _Layout:
    """The coordinates of the residual stream, and those of a head: the ones that turn fast tell
    lags, and the ones that turn slowly or not at all hold content."""

    def __init__(self, sizes: RotarySizes) -> None:
        v, heads = sizes.vocabulary, sizes.heads
        pythia = sizes.format == "pythia"
        self.d_head = 8 * ceil(max(64 if pythia else v + 25, 4 * v / heads) / 8)
        self.width = heads * self.d_head
        self.turning = turning(sizes.format, self.d_head)
        half = self.turning // 2
        self.angles = BASE[sizes.format] ** (-torch.arange(half, dtype=torch.float64) / half)
        slow = [half - 1 - i for i in range(-(-v // 2))]
        turned = [*slow, *(half + i for i in slow)][:v]
        self.content = list(range(self.turning, self.turning + v)) if pythia else turned
        eye = torch.eye(self.width, dtype=torch.float64)[:, : 4 * v]
        names = ("tokens", "slot", "unread", "answer")
        self.blocks = dict(zip(names, torch.tensor_split(eye, 4, dim=1), strict=True))
        mean = v / self.width if pythia else 0.0  # which LayerNorm takes from the sum
        self.every = self.blocks["tokens"].sum(1) / (1 - mean)
        self.sizes = sizes

    def fast(self, least: float) -> tuple[Tensor, list[int], list[int]]:
        """Return the angles per position that are at least ``least``, and the numbers of the two
        coordinates that each of them turns."""
        some = [f for f, angle in enumerate(self.angles.tolist()) if angle >= least]
        return self.angles[some], some, [self.turning // 2 + f for f in some]


@torch.no_grad()
def construct_rotary(
    kind: str, sizes: RotarySizes, *, seed: int = 0, wiring: Wiring = "used", hidden: bool = False
) -> tuple[Any, frozenset[Claim]]:
    """Build a transformers model with one circuit; its other heads are idle, or imitate the
    circuit's attention.

    Args:
        kind: One of :data:`ROTARY`.
        sizes: The sizes of the model.
        seed: Seed for the places of the circuit's heads and for the weights of the others.
        wiring: ``used``, or the kind of decoy. A decoy has the circuit's attention, but its logits
            come from the current token: the answer is not read (``unread``), not written
            (``silent``), or written alike from every key (``constant``).
        hidden: Whether the stream is rotated into a random basis and norms get random gains.

    Returns:
        The model, and the true roles of its heads.
    """
    jobs, sign = ROTARY[kind]
    layout, generator = _Layout(sizes), torch.Generator().manual_seed(seed)
    weights = _Weights(layout, len(jobs) + sizes.idle, generator)
    claims = set[Claim]()
    for layer, job in enumerate(jobs):
        place = int(torch.randint(sizes.heads, (1,), generator=generator))
        mine = wiring if layer == len(jobs) - 1 else "used"
        weights.write(layer, place, job, mine)
        claims |= {("head", layer, place, role, "") for role in job.roles}
    weights.write_ends(kind, sign, len(jobs), wiring)
    if hidden:
        weights.hide(generator)
    return weights.model(), frozenset(claims if wiring == "used" else ())


@torch.no_grad()
def construct_rotary_needed(
    role: str, sizes: RotarySizes, *, seed: int = 0, hidden: bool = False
) -> tuple[Any, frozenset[Claim]]:
    """Build a transformers model in which one head has a role's attention and is necessary, but not
    through this role.

    Args:
        role: One of :data:`ROTARY_NEEDED`.
        sizes: The sizes of the model, of at least four heads.
        seed: Seed for the place of the head.
        hidden: As for :func:`construct_rotary`.

    Returns:
        The model, and the claims that are exempt from scoring: all except this role of this head.
    """
    layout, generator = _Layout(sizes), torch.Generator().manual_seed(seed)
    weights = _Weights(layout, 1 + sizes.idle, generator)
    place = int(torch.randint(sizes.heads, (1,), generator=generator))
    rule, share = ROTARY_NEEDED[role]
    weights.write(0, place, _RotaryHead(rule, "answer", ()), times=-1.0)
    if role == "previous-token":  # a push on the other half's token, so that it is missed
        other = (place + 2) % sizes.heads
        weights.write(0, other, _RotaryHead(_PREVIOUS, "answer", ()), times=0.5 * share)
    read = layout.blocks["tokens"] + layout.blocks["answer"] / share
    weights.unembed = sqrt(3 / layout.width) * _PUSH * read
    if hidden:
        weights.hide(generator)
    return weights.model(), all_but((1 + sizes.idle, sizes.heads), (0, place), role)


@torch.no_grad()
def untrained_model(sizes: RotarySizes, layers: int, seed: int) -> Any:
    """Return a model of the given sizes with initial weights."""
    torch.manual_seed(seed)
    layout = _Layout(sizes)
    return empty(sizes, layers, layout.width, layout.d_head)


class _Weights:
    """The weight matrices of a model by layer and head, before they are put into the layout of a
    format."""

    def __init__(self, layout: _Layout, layers: int, generator: torch.Generator) -> None:
        sizes = layout.sizes
        shape = (layers, sizes.heads, layout.width, layout.d_head)

        def noise() -> Tensor:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return 0.3 / sqrt(layout.width) * drawn

        self.layout, self.layers = layout, layers
        self.Q, self.K, self.V = noise(), noise(), noise()
        self.O = torch.zeros(layers, sizes.heads, layout.d_head, layout.width, dtype=torch.float64)
        self.O[:, :, : sizes.vocabulary] = _UNREAD * layout.blocks["unread"].T
        self.gains = torch.ones(layers + 1, layout.width, dtype=torch.float64)
        self.basis = torch.eye(layout.width, dtype=torch.float64)
        self.embed = layout.blocks["tokens"].T
        self.unembed = torch.zeros(layout.width, sizes.vocabulary, dtype=torch.float64)

    def write(
        self, layer: int, place: int, job: _RotaryHead, wiring: str = "used", times: float = 1.0
    ) -> None:
        """Give a head its job. The head that shares its keys attends to the same positions, and
        writes into coordinates that nothing reads."""
        layout, v = self.layout, self.layout.sizes.vocabulary
        scale = sqrt((1 + layer) / layout.width)  # of this layer's norm, about
        other = place ^ 1
        for head in (place, other):
            self.Q[layer, head], self.K[layer, head] = self._attention(job.rule, scale)
            self.V[layer, head] = 0
            self.V[layer, head, :, :v] = layout.blocks["tokens"] * scale
        self.O[layer, place] = 0
        if wiring != "silent":
            values = torch.eye(v, dtype=torch.float64)
            if job.rule != _FIRST:
                values[0, 0] = 0  # who rests on BOS writes nothing
            if wiring == "constant":
                values = torch.full_like(values, 1 / v)
            self.O[layer, place, :v] = times * values @ layout.blocks[job.writes].T

    def _attention(self, rule: _Rule, scale: float) -> tuple[Tensor, Tensor]:
        """Return W_Q and W_K for a rule of attention, for a normed residual stream."""
        layout = self.layout
        query = torch.zeros(layout.width, layout.d_head, dtype=torch.float64)
        key = torch.zeros_like(query)
        content = layout.content
        if rule.query:
            query[:, content] = layout.blocks[rule.query]
            key[:, content] = layout.blocks[rule.key]
        if rule.first:
            bos = content[0]  # no other token's entry is there: BOS is never looked for as content
            query[:, bos] = layout.every
            key[:, bos] = rule.first * layout.blocks["tokens"][:, 0]
        if rule.lagged:
            angles, cos, sin = layout.fast(_SEEKING if rule.lagged > 0 else _AVOIDING)
            off = rule.lag % 1  # how much less than the nearest lags the next ones get:
            beside = float(((off * angles).cos() - ((1 + off) * angles).cos()).sum())
            size = rule.lagged / (beside if rule.lagged > 0 else len(angles))
            read = layout.every.clone()
            if rule.first:
                read -= layout.blocks["tokens"][:, 0]  # BOS is as far from everywhere
            query[:, cos] = layout.every[:, None]
            key[:, cos] = size * read[:, None] * (rule.lag * angles).cos()
            key[:, sin] = size * read[:, None] * (rule.lag * angles).sin()
        return query * (_SHARP * scale * sqrt(layout.d_head)), key * scale

    def write_ends(self, kind: str, sign: float, jobs: int, wiring: str) -> None:
        layout, v = self.layout, self.layout.sizes.vocabulary
        scale = sqrt((1 + jobs) / layout.width)
        tokens, answer = layout.blocks["tokens"], layout.blocks["answer"]
        if wiring == "used":
            self.unembed = (log(v) + 3 if sign > 0 else -4.0) * scale * answer
        else:
            self.unembed = _FAINT * scale * (tokens + (answer if wiring != "unread" else 0))
        if kind != "first-negative":  # whose head it is that keeps BOS from being predicted
            self.unembed[:, 0] = -_NEVER * scale * layout.every

    def hide(self, generator: torch.Generator) -> None:
        """Choose a random basis, which leaves the mean of the stream apart as LayerNorm needs, and
        random gains."""
        size = self.layout.width
        one = torch.ones(size, 1, dtype=torch.float64) / sqrt(size)
        flat = torch.linalg.qr(torch.cat([one, torch.eye(size)[:, 1:].double()], dim=1)).Q
        turn = torch.linalg.qr(torch.randn(size - 1, size - 1, generator=generator).double()).Q
        inner = torch.eye(size, dtype=torch.float64)
        inner[1:, 1:] = turn
        self.basis = flat @ inner @ flat.T
        drawn = torch.randn(self.gains.shape, generator=generator).double()
        self.gains = (0.4 * drawn).exp()

    def model(self) -> Any:
        """Return a transformers model with these matrices."""
        turn = self.basis
        found = Matrices(
            Q=turn.T @ self.Q,
            K=turn.T @ self.K,
            V=turn.T @ self.V,
            O=self.O @ turn,
            gains=self.gains,
            embed=self.embed @ turn,
            unembed=turn.T @ self.unembed,
        )
        return model_from_matrices(found, self.layout.sizes)
