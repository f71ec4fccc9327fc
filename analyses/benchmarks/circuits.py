"""Small language models in GPT-2's format whose circuits are written down, with LayerNorm.

    residual coordinates   tokens ⊕ positions ⊕ slot ⊕ unread ⊕ answer, the first two one-hot
    a head                 attends by one rule (``_ATTENDING``), reads tokens or positions and
                           writes them into the slot (for a later head) or into the answer
    the logits             b · answer: b > 0 raises what was written there, b < 0 lowers it

LayerNorm: every row of token ⊕ position has the same mean and variance, so that the first norm is
one affine map for all inputs, and later ones differ in scale by what a diffuse head writes: scores
are sharp enough for that not to matter. With one-hot blocks the mean adds a constant to queries and
to keys, which a softmax does not see.

Which role has an effect on the loss, and where, decides what each circuit is for:

    induction, pointer      continue repeated tokens; a pointer circuit finds the token after an
                            earlier equal one by that one's position, with no previous-token head
    previous-copy           the third token of α β α
    window-copy             raises all tokens of a block that is repeated
    …-negative              lowers tokens that do not come next: the one before, the query's own,
                            (in α β α) the last few, or BOS, which never comes again

No certificate is derived: that the circuits do what they are said to do is tested by running them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal, get_args

import torch
from torch import Tensor

from prooflens.architectures import Attention, SequenceTransformer, TransformerSpec
from prooflens.proofs import Certificate, Construction, Mechanism, Part

__all__ = [
    "CIRCUITS",
    "CircuitLayout",
    "Shared",
    "Sizes",
    "Wiring",
    "construct_circuit",
    "with_gains",
]

Wiring = Literal["used", "unread", "silent", "constant"]
_STRENGTH = 40.0
_TIMES = {"recent": 3.0, "periods": 3.0}
"""Rule of attention → strength with which its head writes, as a multiple of the mean over its keys.
A head that attends to a window writes the mean over its keys, in which a single key counts for
less."""

_UNREAD = 0.1
"""Factor on what imitating heads write into coordinates that nothing reads. It is too small to
change a norm."""

_FAINT = 0.5
"""Number of nats by which a decoy's logits differ, so little that its effect on the norms does not
matter."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model.

    Attributes:
        vocabulary: How many tokens there are.
        length: How many positions a row has.
        heads: How many heads each layer has; those without a job are idle, or decoys.
        bos: Whether token 0 begins every row.
    """

    vocabulary: int
    length: int
    heads: int
    bos: bool


@dataclass(frozen=True)
class _CircuitHead:
    """What one head of a circuit does.

    Attributes:
        attends: The rule by which it attends, a key of ``_ATTENDING``.
        reads: What it reads at the keys, ``tokens`` or ``positions``.
        writes: Where it writes: into the ``slot`` for a later head, or into the ``answer``.
        roles: The names of the roles that this amounts to.
    """

    attends: str
    reads: str
    writes: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class _Circuit:
    """A circuit with one head's job in each layer.

    Attributes:
        heads: The job of each layer.
        raises: A function from the size of the vocabulary to the number of nats by which the answer
            changes its token's logit: above 0 it raises it, below 0 it lowers it.
    """

    heads: tuple[_CircuitHead, ...]
    raises: Callable[[int], float]


def _wins(vocabulary: int) -> float:
    return log(vocabulary) + 3


def _lowers(vocabulary: int) -> float:
    return -4.0


def _one(attends: str, role: str, raises: Callable[[int], float], *more: str) -> _Circuit:
    return _Circuit((_CircuitHead(attends, "tokens", "answer", (role, "copying", *more)),), raises)


CIRCUITS: Mapping[str, _Circuit] = {
    "induction": _Circuit(
        (
            _CircuitHead("previous", "tokens", "slot", ("previous-token",)),
            _CircuitHead("after_same", "tokens", "answer", ("induction", "copying")),
        ),
        _wins,
    ),
    "pointer": _Circuit(
        (
            _CircuitHead("same", "positions", "slot", ("duplicate-token", "unscored:bos-gated")),
            _CircuitHead("pointed", "tokens", "answer", ("copying", "unscored:induction")),
        ),
        _wins,
    ),
    "previous-copy": _one("previous", "previous-token", _wins),
    "previous-negative": _one("previous", "previous-token", _lowers),
    "duplicate-negative": _one("same", "duplicate-token", _lowers, "unscored:bos-gated"),
    "first-negative": _Circuit((_CircuitHead("first", "tokens", "answer", ("sink",)),), _lowers),
    "window-copy": _one("periods", "positional", _wins),
    "window-negative": _one("recent", "positional", _lowers),
}
"""Name of each circuit → the job of one head in each layer."""


@dataclass(frozen=True)
class Shared:
    """Several heads for one job of a circuit, and decoys that attend as they do.

    Attributes:
        layer: The layer of the job.
        heads: How many heads do it.
        split: Whether each writes its part of the answer, so that all are needed for the whole of
            it; otherwise each writes all of it, and one is enough.
    """

    layer: int
    heads: int
    split: bool


def construct_circuit(
    kind: str,
    sizes: Sizes,
    *,
    seed: int = 0,
    wiring: Wiring = "used",
    shared: Shared | None = None,
) -> Construction:
    """Build a float64 model with one circuit; its other heads are idle, or imitate the circuit's
    attention.

    Args:
        kind: One of :data:`CIRCUITS`.
        sizes: The sizes of the model.
        seed: Seed for the places of the circuit's heads and for the weights of the others.
        wiring: ``used``, or the kind of decoy. A decoy has the circuit's attention, but its logits
            come from the current token: the answer is not read (``unread``), not written
            (``silent``), or written alike from every key (``constant``).
        shared: Several heads for one job; all heads without a job then attend as their layer's job
            does, and write where nothing reads.

    Returns:
        The model with its mechanism. Parts with a role ``unscored:ROLE`` may be found to have this
        role or not; neither counts as wrong. ``task`` is None, because the models predict tokens.

    Raises:
        ValueError: for an unknown wiring.
    """
    if wiring not in get_args(Wiring):
        raise ValueError(f"wiring must be one of {', '.join(get_args(Wiring))}, got {wiring!r}")
    circuit, layout = CIRCUITS[kind], CircuitLayout(sizes)
    model = SequenceTransformer(spec_of(sizes, layout, len(circuit.heads)), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    places = [[int(torch.randint(sizes.heads, (1,), generator=generator))] for _ in circuit.heads]
    if shared is not None:
        order = torch.randperm(sizes.heads, generator=generator)
        places[shared.layer] = sorted(order[: shared.heads].tolist())
    with torch.no_grad():
        _write_ends(model, layout, circuit, wiring)
        for layer, (head, mine) in enumerate(zip(circuit.heads, places, strict=True)):
            attn, last = model.blocks[layer].attn, layer == len(places) - 1
            attn.W_O.zero_()
            scale = sqrt((2 + layer) / layout.width)  # of this layer's norm, about
            for place in mine:
                write_attention(attn, place, _ATTENDING[head.attends](layout), scale)
                _write_values(attn, place, head, layout, scale, wiring if last else "used")
                if shared is not None and shared.split:
                    attn.W_O[place] /= len(mine)
            others = [one for one in range(sizes.heads) if one not in mine]
            chosen = others[1 - (seed + layer) % 2 :: 2] if shared is None else others
            for one in chosen:
                _imitate(attn, one, "previous" if shared is None else head.attends, layout, scale)
    parts = [
        Part("head", layer, place, role, "")
        for layer, (head, mine) in enumerate(zip(circuit.heads, places, strict=True))
        for place in mine
        for role in head.roles
    ]
    if wiring != "used":
        parts = []
    return Construction(
        f"{kind}-{sizes.vocabulary}-{sizes.length}-{sizes.heads}",
        None,
        model,
        Mechanism(tuple(parts)),
        Certificate(inf, {}, "no bound is derived"),
    )


@torch.no_grad()
def with_gains(model: SequenceTransformer, seed: int) -> SequenceTransformer:
    """Give every norm of a model random gains, and divide the weights that read the normed stream
    by them. The model is changed in place and computes the same function."""
    generator = torch.Generator().manual_seed(seed)

    def gain() -> Tensor:
        drawn = torch.randn(model.spec.d_model, generator=generator, dtype=torch.float64)
        return (0.4 * drawn).exp()

    for block in model.blocks:
        g = gain()
        if block.ln1.w is not None:
            block.ln1.w.mul_(g)
        for weight in (block.attn.W_Q, block.attn.W_K, block.attn.W_V):
            weight.div_(g[:, None])
    g = gain()
    if model.ln_final.w is not None:
        model.ln_final.w.mul_(g)
    model.unembed.W_U.div_(g[:, None])
    return model


class CircuitLayout:
    """The coordinates of the residual stream that hold tokens, positions, slot, unread and answer.
    Each field is a ``[d_model, size]`` block of the identity matrix."""

    def __init__(self, sizes: Sizes) -> None:
        v, n = sizes.vocabulary, sizes.length
        blocks = [v, n, max(v, n), v, v]
        self.d_head = max(v + n + 1, -(-sum(blocks) // sizes.heads))
        self.width = sizes.heads * self.d_head
        eye = torch.eye(self.width, dtype=torch.float64)[:, : sum(blocks)]
        parts = torch.split(eye, blocks, dim=1)
        self.tokens, self.positions, self.slot, self.unread, self.answer = parts
        self.sizes = sizes


def spec_of(sizes: Sizes, layout: CircuitLayout, layers: int) -> TransformerSpec:
    return TransformerSpec(
        input="tokens",
        d_in=sizes.vocabulary,
        d_out=sizes.vocabulary,
        n_ctx=sizes.length,
        d_model=layout.width,
        n_layers=layers,
        n_heads=sizes.heads,
        d_head=layout.d_head,
        positions="learned",
        norm="layernorm",
        dtype="float64",
    )


def _write_ends(
    model: SequenceTransformer, layout: CircuitLayout, circuit: _Circuit, wiring: Wiring
) -> None:
    model.embed.W_E.copy_(layout.tokens.T)
    if model.pos_embed is not None:
        model.pos_embed.W_pos.copy_(layout.positions.T)
    scale = sqrt((2 + len(circuit.heads)) / layout.width)
    if wiring == "used":
        model.unembed.W_U.copy_(circuit.raises(layout.sizes.vocabulary) * scale * layout.answer)
        return
    read = layout.tokens + (layout.answer if wiring != "unread" else 0)
    model.unembed.W_U.copy_(_FAINT * scale * read)


def write_attention(attn: Attention, head: int, rule: tuple[Tensor, Tensor], scale: float) -> None:
    """Set a head's W_Q and W_K so that its scores on normed rows are about a fixed strength times
    queries · keys."""
    queries, keys = rule
    width = queries.shape[1]
    for weight in (attn.W_Q, attn.W_K):
        weight[head] = 0
    attn.W_Q[head, :, :width] = queries * (_STRENGTH * scale**2 * attn.W_Q.shape[-1] ** 0.5)
    attn.W_K[head, :, :width] = keys


def by_lag(wanted: Callable[[Tensor], Tensor]) -> Callable[[CircuitLayout], tuple[Tensor, Tensor]]:
    """Return the rule of a head that attends to the keys at some lags, and to the first position if
    no key is at one of them."""

    def rule(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
        position = torch.arange(layout.sizes.length)
        table = wanted(position[:, None] - position) & (position <= position[:, None])
        table[~table.any(1), 0] = True
        return layout.positions @ table.double(), layout.positions

    return rule


def _same(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    """Return queries and keys for attention to equal tokens at other positions, and to the first
    position if there are none."""
    first = layout.positions[:, :1]
    queries = torch.cat([layout.tokens, layout.positions], dim=1)
    keys = torch.cat([layout.tokens, -2 * layout.positions], dim=1)
    every = layout.tokens.sum(1, keepdim=True)
    extra = every @ torch.full((1, 1), 0.5, dtype=torch.float64)
    return torch.cat([queries, extra], dim=1), torch.cat([keys, first], dim=1)


def after_same(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    """Return queries and keys for attention to the positions whose slot holds the query's token.
    The first position is left out."""
    v = layout.sizes.vocabulary
    every, first = layout.tokens.sum(1, keepdim=True), layout.positions[:, :1]
    queries = torch.cat([layout.tokens, every], dim=1)
    return queries, torch.cat([layout.slot[:, :v], -first], dim=1)


def _pointer_rule(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    """Return queries and keys for attention to the position after the one that the query's slot
    names."""
    n = layout.sizes.length
    return layout.slot[:, : n - 1], layout.positions[:, 1:]


def _periods(layout: CircuitLayout) -> tuple[Tensor, Tensor]:
    """Return the rule of a head that attends to all lags at which the next token may stand in a row
    that repeats: every possible period, minus one."""
    longest = (layout.sizes.length - 2) // 2
    return by_lag(lambda lag: (lag >= max(2, longest // 3 - 1)) & (lag < longest))(layout)


_ATTENDING: Mapping[str, Callable[[CircuitLayout], tuple[Tensor, Tensor]]] = {
    "previous": by_lag(lambda lag: lag == 1),
    "first": by_lag(lambda lag: lag < 0),
    "recent": by_lag(lambda lag: (lag >= 2) & (lag <= 4)),
    "periods": _periods,
    "same": _same,
    "after_same": after_same,
    "pointed": _pointer_rule,
}


def _write_values(
    attn: Attention,
    place: int,
    head: _CircuitHead,
    layout: CircuitLayout,
    scale: float,
    wiring: Wiring,
) -> None:
    attn.W_V[place] = 0
    if wiring == "silent":
        return
    read = layout.tokens if head.reads == "tokens" else layout.positions
    written = layout.slot if head.writes == "slot" else layout.answer
    values = torch.eye(read.shape[1], dtype=torch.float64)
    if wiring == "constant":
        values = values.mean(0, keepdim=True).expand_as(values)
    size, times = read.shape[1], _TIMES.get(head.attends, 1.0)
    attn.W_V[place, :, :size] = read * scale
    attn.W_O[place, :size] = times * values @ written[:, :size].T


def _imitate(attn: Attention, head: int, rule: str, layout: CircuitLayout, scale: float) -> None:
    """Give a head a rule of attention, and let it write into coordinates that nothing reads."""
    write_attention(attn, head, _ATTENDING[rule](layout), scale)
    attn.W_V[head] = 0
    size = layout.sizes.vocabulary
    attn.W_V[head, :, :size] = layout.tokens * scale
    attn.W_O[head, :size] = _UNREAD * layout.unread.T
