"""Template tasks solved by construction (`template` §2.3): equality heads, copying heads and ramps.

    plan          which bits of a string decide, and how large the scores have to be
    weights       heads that match, fix, average and copy; ramps that compare
    certificate   how far the stored weights can be from the answer
    mechanism     which component does what, and which coordinate holds what

*The weights:*

    residual   symbol ⊕ position ⊕ flag of a regular token ⊕ work
    layer 1    equality head: scores a⟨e_t, e_j⟩, values are positions. A match has weight ≥ 1/k,
               anything else ≤ e^{−a(1−μ)}; a clipped ramp makes that 0 or 1, in slot t
    layer 2    uniform average of the slots; one clipped ramp a template → label, or source code
    layer 3    (symbolic labels) the code matches the positions, W_V W_O = b·P_sym copies the symbol

    matching   W_Q W_Kᵀ/√d_head = a·P_sym; W_V reads positions, never symbols
    fixed      a query code matches a one-hot position: score c there, 0 elsewhere
    averaging  no scores: uniform over the prefix
    copying    W_V W_O = b·P_sym
    ramp       clip(v, 0, 1) = relu(v) − relu(v − 1), two neurons

A string's *bits* contain everything that a template fixes: ``equal t j``, whether position t has
the token of position j < t, and ``token t v``, whether it has the regular token v. The readout
compares them with each template's. Two layers compute the bits of all positions, one layer only
those of the last row: it suffices iff the answers are a function of that row (``ααβ`` and ``αγβ``
collide). If all answers are at one position, the layer that copies is enough.

With k positions and coherence μ the margins give the sizes of the scores: a(1 − μ) = log 4k + 2,
and a position is fixed by a score c with (k − 1)e^{−c} = δ = 10⁻³. The last symbol is in the
residual stream already (with a regular token's flag added to it), so a copy needs b(1 − 2δ − δμ −
μ) ≥ 2 + own + μ for a margin of 1; b = 1 would fail.

The weights contain the regular tokens and the alphabet's embedding, but no particular symbol: all
symbols are unseen. Embeddings are orthonormal, or random unit vectors of coherence μ = max |⟨e_u,
e_v⟩|, for which a and b grow. A trained model may use neither projectors nor slots.

*The certificate:* a wildcard stands for any token u of the alphabet, so its embedding is

    E_u = Σ_v ε_v E_v,    ε_v = 1 for v = u and 0 for every other v

Each ε_v is a noise symbol of an affine form (:mod:`interp.bounds.affine`), the same one at every
occurrence of the wildcard. A read that ignores the symbols has ⟨w, E_v⟩ ≈ 0 for every v, in any
basis, and the form keeps what is left of each product. Only two places need more than the range [0,
1] of ε:

    first layer     whether two tokens are equal is not linear in ε. A score is a function of two
                    tokens and two positions. It is computed for all of them, and bounded by the
                    least and the largest over pairs of equal tokens if the template repeats a
                    wildcard, over pairs of different ones if it has two wildcards
    symbolic label  exactly one ε_v of a wildcard is 1. For every answer u the wildcard of the
                    answer is set to u, and the others to what is worst for u's lead

Everything between is bounded by :mod:`interp.bounds.network`, template by template. The forms cover
the function of the stored weights and every evaluation of it in their dtype. So the rounding of the
weights themselves (a change of basis rounds them all) is no separate term, and a wrong weight
widens the bound as needed. Scores of a match hold with a margin, and the FFN's ramps are flat
there, so in a correct model only rounding is left.

This is a worst case: rounding grows with the widths and with the alphabet, and random rows have
less. It is not for models with other scores than dot products. The tables take (positions ·
tokens)² numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import fsum, log, sqrt
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from interp.bounds.affine import UP, Affine, Arithmetic, exactly, linear, scale
from interp.bounds.attention import linear_heads, weights
from interp.bounds.network import (
    apply_norm,
    embed_inputs,
    entry_stream,
    not_covered,
    read_out,
    stream_after,
)
from interp.errors import Problems, need
from interp.hooks.site import Site
from interp.models.attention.heads import Attention
from interp.models.ffn import FFN, HiddenLayer
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model
from interp.tasks.template import TemplateTask
from interp.tasks.template.task import is_wildcard, regular_tokens, wildcards

Outcome = float | int | str
"""A template's answer: a real label, the position that the answer is copied from, or a token that
does not occur in the template."""


@dataclass(frozen=True)
class Bit:
    """A yes-or-no property of a string: position ``t`` has the token of position ``j``, or has
    ``token``."""

    t: int
    j: int | None = None
    token: str | None = None

    @property
    def name(self) -> str:
        """The bit's name: ``equality[3,1]`` (positions 3 and 1 hold the same token) or
        ``token[0,x]`` (position 0 holds token x)."""
        return (
            f"equality[{self.t},{self.j}]"
            if self.token is None
            else f"token[{self.t},{self.token}]"
        )

    def holds(self, template: str) -> bool:
        """Return the bit's value on every string of a template."""
        if self.token is not None:
            return template[self.t] == self.token
        return self.j is not None and template[self.t] == template[self.j]


@dataclass(frozen=True)
class BitPattern:
    """A pattern of bits that one ramp of the readout detects, and the answer that follows from
    it."""

    pattern: tuple[bool, ...]
    outcome: Outcome


def bits(task: TemplateTask, layers: int) -> tuple[Bit, ...]:
    """Return the bits that are available to a readout after one or two layers of attention."""
    last = task.length - 1
    rows = range(task.length) if layers == 2 else (last,)
    equal = [Bit(t, j) for t in rows for j in range(t)]
    tokens = regular_tokens(task.templates)
    return (*equal, *(Bit(t, token=v) for t in range(task.length) for v in tokens))


def outcome(task: TemplateTask, template: int) -> Outcome:
    """Return a template's answer: a real label, the position that the answer is copied from, or (if
    no position has the label) the answer's token."""
    label = task.labels[template]
    if not isinstance(label, str):
        return float(label)
    source = task.source(template)
    return source if source >= 0 else label


def keys(task: TemplateTask, asked: tuple[Bit, ...]) -> tuple[BitPattern, ...]:
    """Return the distinct patterns of the asked bits among the templates, each with its outcome."""
    found = {p: outcome(task, i) for p, i in _patterns(task, asked)}
    return tuple(BitPattern(pattern, found[pattern]) for pattern in found)


def collision(task: TemplateTask, asked: tuple[Bit, ...]) -> tuple[str, str] | None:
    """Return two templates that the bits do not distinguish although their answers differ; None if
    none."""
    seen: dict[tuple[bool, ...], int] = {}
    for pattern, index in _patterns(task, asked):
        first = seen.setdefault(pattern, index)
        if outcome(task, first) != outcome(task, index):
            return task.templates[first], task.templates[index]
    return None


def _patterns(task: TemplateTask, asked: tuple[Bit, ...]) -> Iterator[tuple[tuple[bool, ...], int]]:
    for index, template in enumerate(task.templates):
        yield tuple(bit.holds(template) for bit in asked), index


class Slots:
    """Hands out slices of the residual stream's coordinates, one after the other.

    Attributes:
        width: The number of coordinates handed out so far.
    """

    def __init__(self) -> None:
        self.width = 0

    def take(self, count: int) -> slice:
        """Take the next ``count`` coordinates."""
        self.width += count
        return slice(self.width - count, self.width)


_LEAK = 1e-3
"""Share of attention that a head with one fixed position gives to all other positions together. The
score of the fixed position is chosen to reach it."""
_SPARE = 2.0
"""Safety margin in nats in the score a of a match. With it e^{−a(1−μ)}, the leak to tokens that do
not match, stays below the threshold up to which the clipped ramp gives 0."""


def one_layer_suffices(task: TemplateTask) -> bool:
    """Return whether the answers are a function of the last row of XXᵀ and of the regular
    tokens."""
    return collision(task, bits(task, 1)) is None


@dataclass(frozen=True)
class BuildPlan:
    """Everything that determines the weights; slices are coordinates of the residual stream."""

    task: TemplateTask
    readout: int
    embedding: Float64[Tensor, "token dimension"]
    coherence: float
    asked: tuple[Bit, ...]
    keys: tuple[BitPattern, ...]
    symbol: slice
    position: slice
    flag: slice
    row: slice
    flags: slice
    cells: slice
    means: slice
    code: slice
    label: slice
    width: int

    @property
    def k(self) -> int:
        """The number of positions of a string."""
        return self.task.length

    @property
    def tokens(self) -> tuple[str, ...]:
        """The regular tokens that occur in templates."""
        return regular_tokens(self.task.templates)

    @property
    def fixes(self) -> bool:
        """Whether a single layer must fetch the flags of earlier positions."""
        return self.readout == 1 and bool(self.tokens)

    @property
    def a(self) -> float:
        """The score of a match, large enough for the ramp's margin."""
        return (log(4 * self.k) + _SPARE) / (1 - self.coherence)

    @property
    def c(self) -> float:
        """The score of the one position that a head is fixed on."""
        return log(max(self.k - 1, 1) / _LEAK)

    @property
    def gate(self) -> float:
        """A number above the sum of all bits at earlier positions, whose averages are larger."""
        return 2.0 * self.k * (len(self.asked) + 1)

    @property
    def own(self) -> float:
        """The most that the last symbol's own flag can add to its logit."""
        return 1.0 if self.tokens else 0.0

    @property
    def slack(self) -> float:
        """The part of the copying strength b that contributes to the margin."""
        mu = self.coherence
        return 1 - 2 * _LEAK - _LEAK * mu - mu

    @property
    def b(self) -> float:
        """The copying strength b for a margin of at least 1."""
        return (2 + self.own + self.coherence) / self.slack

    @property
    def direct(self) -> float:
        """The strength with which a token is written if it is not copied from a position."""
        mu = self.coherence
        return (1 + self.own + (1 + self.b) * (1 + mu)) / (1 - mu)


def plan_of(task: TemplateTask, dimension: int | None, layers: int | None, seed: int) -> BuildPlan:
    """Make the plan for a task.

    Raises:
        ArgumentError: for arguments that :func:`~interp.proofs.template.construct_template`
            refuses.
    """
    problems = Problems("construct_template")
    rule = "must be at least 1"
    problems.need(dimension is None or dimension >= 1, "dimension", rule, dimension, "raise it")
    problems.need(layers in (None, 1, 2), "readout_layers", "must be 1 or 2", layers, "or None")
    problems.raise_if_any()
    embedding, coherence = _embedding(task.vocabulary, dimension, seed)
    readout = _readout_layers(task, layers)
    asked = bits(task, readout) if readout else ()
    _check_collisions(task, asked, readout)
    slots, k = Slots(), task.length
    r = len(regular_tokens(task.templates))
    plan = BuildPlan(
        task,
        readout,
        embedding,
        coherence,
        asked,
        keys(task, asked) if readout else (),
        symbol=slots.take(embedding.shape[1]),
        position=slots.take(k),
        flag=slots.take(r),
        row=slots.take(k if readout else 0),
        flags=slots.take((k - 1) * r if readout == 1 else 0),
        cells=slots.take(len(asked) if readout == 2 else 0),
        means=slots.take(len(asked) if readout == 2 else 0),
        code=slots.take(k if readout and task.symbolic else 0),
        label=slots.take(0 if task.symbolic else 1),
        width=slots.width,
    )
    good = not task.symbolic or plan.slack > 0.05
    rule = f"must give embeddings that can be copied (coherence is {coherence:.2f})"
    problems.need(good, "dimension", rule, dimension, "raise it, or use fewer symbols")
    rule = f"must keep embeddings apart (coherence is {coherence:.3f})"
    problems.need(coherence < 0.99, "dimension", rule, dimension, "raise it")
    problems.raise_if_any()
    return plan


def _readout_layers(task: TemplateTask, layers: int | None) -> int:
    """Return the number of layers before the copy; 0 if all answers are at one position."""
    answers = {outcome(task, i) for i in range(len(task.templates))}
    fixed = len(answers) == 1 and isinstance(next(iter(answers)), int)
    if layers is None and fixed:
        return 0
    return layers or (1 if one_layer_suffices(task) else 2)


def _check_collisions(task: TemplateTask, asked: tuple[Bit, ...], layers: int) -> None:
    pair = collision(task, asked) if layers == 1 else None
    if pair is not None:
        rule = f"must be 2: {pair[0]} and {pair[1]} have the same last row"
        need("construct_template", False, "readout_layers", rule, layers, "use 2 or None")


def _embedding(
    vocabulary: int, dimension: int | None, seed: int
) -> tuple[Float64[Tensor, "token dimension"], float]:
    """Return the unit vectors of the tokens, and the largest |inner product| of two of them."""
    if dimension is None:
        return torch.eye(vocabulary, dtype=torch.float64), 0.0
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(vocabulary, dimension, generator=generator, dtype=torch.float64)
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    products = (drawn @ drawn.T).fill_diagonal_(0)
    return drawn, float(products.abs().max())


@dataclass(frozen=True)
class Ramp:
    """A clipped ramp clip(Σ reads·x + shift, 0, 1), whose value is written with given weights.

    Attributes:
        reads: Coordinate → weight.
        shift: The constant added to the sum.
        writes: Coordinate → weight.
    """

    reads: Mapping[int, float]
    shift: float
    writes: Mapping[int, float]


def write_scores(
    attn: Attention, head: int, queries: slice, keys: slice, strength: float, d_head: int
) -> None:
    """Write scores strength · ⟨x_t[queries], x_j[keys]⟩; a single query coordinate is shared."""
    width = keys.stop - keys.start
    scale = sqrt(strength * sqrt(d_head))
    attn.W_Q[head, queries, :width] = scale * torch.eye(width, dtype=attn.W_Q.dtype)
    attn.W_K[head, keys, :width] = scale * torch.eye(width, dtype=attn.W_K.dtype)


def write_pair(attn: Attention, head: int, reads: slice, writes: slice, gain: float = 1.0) -> None:
    """Write W_V W_O so that it carries ``reads`` to ``writes``, times ``gain``."""
    width = reads.stop - reads.start
    attn.W_V[head, reads, :width] = torch.eye(width, dtype=attn.W_V.dtype)
    attn.W_O[head, :width, writes] = gain * torch.eye(width, dtype=attn.W_O.dtype)


def write_ramps(ffn: FFN, ramps: list[Ramp]) -> None:
    """Write ramps into the FFN's last hidden layer."""
    for i, ramp in enumerate(ramps):
        _write_inputs(ffn.W_in, ffn.b_in, i, ramp)
        for coordinate, weight in ramp.writes.items():
            ffn.W_out[2 * i, coordinate] += weight
            ffn.W_out[2 * i + 1, coordinate] -= weight


def write_hidden_ramps(ffn: FFN, first: list[Ramp], second: list[Ramp]) -> None:
    """Write ramps of ramps: the coordinates that ``second`` reads are indices into ``first``."""
    hidden = cast("HiddenLayer", ffn.hidden[0])
    for i, ramp in enumerate(first):
        _write_inputs(hidden.W, hidden.b, i, ramp)
    spread = []
    for ramp in second:
        pairs = {2 * i: w for i, w in ramp.reads.items()}
        pairs |= {2 * i + 1: -w for i, w in ramp.reads.items()}
        spread.append(Ramp(pairs, ramp.shift, ramp.writes))
    write_ramps(ffn, spread)


def _write_inputs(
    weight: Float[Tensor, "d_in width"], bias: Float[Tensor, " width"], index: int, ramp: Ramp
) -> None:
    for neuron, shift in ((2 * index, 0.0), (2 * index + 1, 1.0)):
        for coordinate, value in ramp.reads.items():
            weight[coordinate, neuron] = value
        bias[neuron] = ramp.shift - shift


def mechanism_of(plan: BuildPlan) -> Mechanism:
    """Return the components by role, and the coordinate that holds each bit, source code and
    label."""
    target = "source" if plan.task.symbolic else "label"
    parts: list[Part] = []
    held: dict[str, tuple[int, str]] = {}
    if plan.readout:
        parts.append(Part("head", 0, 0, "symbol-equality", "equality"))
        held |= {
            f"equality[{j}]": (plan.row.start + j, Site(0, "resid_mid").name) for j in range(plan.k)
        }
    if plan.fixes:
        parts += [
            Part("head", 0, j + 1, "fixed-position", f"token[{j}]", lag=plan.k - 1 - j)
            for j in range(plan.k - 1)
        ]
    if plan.readout == 2:
        parts.append(Part("ffn", 0, None, "snap", "equality"))
        parts.append(Part("head", 1, 0, "uniform", "equality"))
        held |= {
            bit.name: (plan.means.start + i, Site(1, "resid_mid").name)
            for i, bit in enumerate(plan.asked)
        }
    at = plan.readout - 1
    if plan.readout:
        parts.append(Part("ffn", at, None, "readout", target))
        after = Site(at, "resid_post").name
        if plan.task.symbolic:
            held |= {f"source[{j}]": (plan.code.start + j, after) for j in range(plan.k)}
        else:
            held["label"] = (plan.label.start, after)
    if plan.task.symbolic:
        parts.append(Part("head", plan.readout, 0, "copying", "symbol"))
    axes = torch.eye(plan.width, dtype=torch.float64)
    return Mechanism(
        parts=tuple(parts),
        directions={name: axes[i] for name, (i, _) in held.items()},
        written={name: hook for name, (_, hook) in held.items()},
    )


Table = Float64[np.ndarray, "head token pos token pos"]


def certificate_of(model: SequenceTransformer, task: TemplateTask) -> Certificate:
    """Bound a label's error, or the share of wrong tokens, for the weights as they are.

    For a real label the ``margin of the labels`` is half the smallest distance of two of them,
    minus the error: if it is positive, the nearest label is the right one. For a symbolic label the
    ``margin of the logits`` is the least lead of the right token: the error is 0 if it is positive,
    and otherwise 1, which means that nothing is known.

    Args:
        model: Any model of the task's tokens with dot-product scores: rotated, damaged or trained.
        task: The template task that it should solve, on all tokens of both alphabets.

    Raises:
        ArgumentError: for models that :mod:`interp.bounds.network` does not cover, with other
            scores, or with too few tokens or positions.
    """
    _check(model, task)
    domain = f"every string of a template, on any of the {task.vocabulary} tokens, last position"
    if task.symbolic:
        lead = _margin(model, task)
        domain = f"{domain}; the error is the share of wrong top tokens"
        return Certificate(0.0 if lead > 0 else 1.0, {"margin of the logits": lead}, domain)
    error, values = _error(model, task), np.unique([float(label) for label in task.labels])
    half = float(np.diff(values).min(initial=np.inf)) / 2
    return Certificate(error, {"margin of the labels": half - error}, domain)


def _check(model: Any, task: TemplateTask) -> None:
    problems, spec = Problems("certificate_of"), model.spec
    reason, need = not_covered(model), problems.need
    need(not reason, "model", "must be covered by bounds", reason, "use another architecture")
    terms = [list(block.attn.terms) for block in list(model.blocks)[:1]]
    rule = "must have a first layer whose scores are dot products alone"
    need(terms == [["dot"]], "model", rule, terms, "use score='dot' without a bias of the lag")
    rule = f"must have {task.vocabulary} tokens and {task.length} positions"
    enough = spec.input == "tokens" and spec.d_in == task.vocabulary and spec.n_ctx >= task.length
    need(enough, "model", rule, (spec.d_in, spec.n_ctx), "build it for this task")
    outputs = task.vocabulary if task.symbolic else 1
    rule = f"must have {outputs} outputs"
    need(spec.d_out == outputs, "model", rule, spec.d_out, "build it for this task")
    problems.raise_if_any()


def _error(model: SequenceTransformer, task: TemplateTask) -> float:
    """Return the largest possible error of a real label."""
    dtype = model.spec.dtype
    low, high = _score_tables(model, task.length, Arithmetic(dtype))
    worst = 0.0
    for template, label in zip(task.templates, map(float, task.labels), strict=True):
        ar = Arithmetic(dtype)
        x = _any_string(model, task, template, ar)
        stream = stream_after(model, x, ar, _scores_of(low, high, task, template))
        least, most = read_out(model, stream, ar).bounds()
        worst = max(worst, float(np.maximum(most - label, label - least)[0, 0]))
    return worst * UP


def _margin(model: SequenceTransformer, task: TemplateTask) -> float:
    """Return the least lead of the right token's logit over any other one's."""
    dtype = model.spec.dtype
    low, high = _score_tables(model, task.length, Arithmetic(dtype))
    lead = np.inf
    for template, label in zip(task.templates, task.labels, strict=True):
        ar = Arithmetic(dtype)
        x = _any_string(model, task, template, ar)
        stream = stream_after(model, x, ar, _scores_of(low, high, task, template))
        logits, names = read_out(model, stream, ar)[0], wildcards(template)
        for token in range(task.vocabulary)[_tokens(task, str(label))]:
            own = names.index(str(label)) if is_wildcard(str(label)) else None
            lead = min(lead, _lead(logits, token, len(task.regular), len(names), own))
    return lead


def _lead(logits: Affine, token: int, first: int, letters: int, own: int | None) -> float:
    """Return the least lead of a token over any other one.

    The first noise symbols choose tokens, one block of them per wildcard. In a block one symbol is
    +1 and the others are −1, which adds 2 g_u − Σ_v g_v: for the wildcard ``own`` u is the token
    itself, for the others it is the worst token, except one that is taken.

    Args:
        logits: The logits of all tokens, ``[token]``.
        token: The right token.
        first: The id of the first token that a wildcard can be.
        letters: The number of wildcards of the template.
        own: The index of the wildcard that is the answer; None if a regular token is the answer.
    """
    symbols = len(logits.centre) - first
    # Noise that the two logits share cancels; their own does not.
    g = logits.generators[:, [token]] - logits.generators
    low = logits.centre[token] - logits.centre - logits.radius[token] - logits.radius
    chosen = g[: letters * symbols].reshape(letters, symbols, -1)
    low = low - np.abs(g[letters * symbols :]).sum(0) - chosen.sum((0, 1))
    for letter in range(letters):
        if letter == own:
            low = low + 2 * chosen[letter, token - first]
        else:
            free = np.arange(symbols) != (-1 if own is None else token - first)
            low = low + 2 * chosen[letter, free].min(0)
    sizes = np.abs(logits.centre) + logits.deviation
    low = low - (sizes + sizes[token]) * (4 * (UP - 1))
    least = float(np.delete(low, token).min())
    return least if not np.isnan(least) else -np.inf


def _tokens(task: TemplateTask, letter: str) -> slice:
    """Return the ids that a character of a template can be."""
    start = len(task.regular) if is_wildcard(letter) else task.regular.index(letter)
    return slice(start, task.vocabulary if is_wildcard(letter) else start + 1)


def _any_string(model: Any, task: TemplateTask, template: str, ar: Arithmetic) -> Affine:
    """Return the stream into the first block for all strings of a template, ``[1, pos, d_model]``.

    With ε = (1 + ε′)/2 the centre is half the sum of all embeddings (rounded once) and the
    generators are half of each.
    """
    table, names = weights(model.embed.W_E), wildcards(template)
    half = table[len(task.regular) :] / 2
    middle, n = np.array([fsum(column) for column in half.T]), len(half)
    centre = np.zeros((1, task.length, table.shape[1]))
    radius, generators = np.zeros_like(centre), np.zeros((len(names) * n, *centre.shape))
    for t, letter in enumerate(template):
        if letter not in names:
            centre[0, t] = table[task.regular.index(letter)]
            continue
        centre[0, t], radius[0, t] = middle, np.abs(middle) * 2.0**-52 + 2.0**-1020
        block = names.index(letter) * n
        generators[block : block + n, 0, t] = half
    ar.symbols = len(generators)
    return entry_stream(model, Affine(centre, generators, radius), ar)


def _score_tables(model: Any, length: int, ar: Arithmetic) -> tuple[Table, Table]:
    """Return least and largest first-layer score of any two tokens at any two positions, query
    first."""
    vocabulary, attn = model.spec.d_in, model.blocks[0].attn
    ids = np.repeat(np.arange(vocabulary)[:, None], length, axis=1)
    seen = apply_norm(model.blocks[0].ln1, embed_inputs(model, ids, ar), ar)
    shape = (vocabulary * length, *attn.W_Q.shape[::2])
    q = linear_heads(seen, attn.W_Q, attn.b_Q, ar).reshape(*shape)
    k = linear_heads(seen, attn.W_K, attn.b_K, ar).reshape(*shape)
    bounds = [_products(q[:, head], k[:, head], attn, ar) for head in range(shape[1])]
    low, high = (np.stack(side) for side in zip(*bounds, strict=True))
    table = (len(low), vocabulary, length, vocabulary, length)
    return low.reshape(table), high.reshape(table)


def _products(
    q: Affine, k: Affine, attn: Any, ar: Arithmetic
) -> tuple[Float64[np.ndarray, "query key"], Float64[np.ndarray, "query key"]]:
    """Return bounds on the scaled products of all queries with all keys, which are known to a
    radius."""
    found = linear(q, k.centre.T, None, ar)
    size = q.magnitude @ k.magnitude.T
    off = q.magnitude @ k.radius.T + ar.error(q.shape[-1] + 4, size * UP)
    found = Affine(found.centre, found.generators, (found.radius + off * UP) * UP)
    return scale(found, np.asarray(attn.terms["dot"].scale), ar).bounds()


def _scores_of(low: Table, high: Table, task: TemplateTask, template: str) -> Affine:
    """Return first-layer scores of all strings of a template, ``[1, head, query, key]``."""
    shape = (len(low), task.length, task.length)
    least, most = np.zeros(shape), np.zeros(shape)
    for (t, one), (j, other) in product(enumerate(template), repeat=2):
        pairs = (slice(None), _tokens(task, one), t, _tokens(task, other), j)
        below, above = low[pairs], high[pairs]
        equal = np.eye(*below.shape[1:], dtype=np.bool_)
        if one == other:
            below, above = below[:, equal], above[:, equal]
        elif is_wildcard(one) and is_wildcard(other):
            below, above = below[:, ~equal], above[:, ~equal]
        axes = tuple(range(1, below.ndim))
        least[:, t, j], most[:, t, j] = below.min(axes), above.max(axes)
    middle = (least + most) / 2
    radius = np.maximum(most - middle, middle - least) * UP
    known = np.isfinite(middle) & np.isfinite(radius)
    centre = exactly(np.where(known, middle, 0.0)[None])
    return Affine(centre.centre, centre.generators, np.where(known, radius, np.inf)[None])


def construct_template(
    task: TemplateTask,
    *,
    dimension: int | None = None,
    readout_layers: int | None = None,
    seed: int = 0,
) -> Construction:
    """Build a float64 model that solves the task on every symbol, up to rounding.

    Args:
        task: Any template task.
        dimension: Dimension of random unit embeddings; None for orthonormal ones.
        readout_layers: Attention layers before the readout, 1 or 2; the fewest by default.
        seed: Seed of random embeddings.

    Raises:
        ArgumentError: naming two templates that one layer does not distinguish, or if the
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


def _spec(plan: BuildPlan) -> TransformerSpec:
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


def _write_ends(model: SequenceTransformer, plan: BuildPlan) -> None:
    model.embed.W_E[:, plan.symbol] = plan.embedding
    for i, token in enumerate(plan.tokens):
        model.embed.W_E[plan.task.regular.index(token), plan.flag.start + i] = 1
    model.W_pos[:, plan.position] = torch.eye(plan.k, dtype=torch.float64)
    if not plan.task.symbolic:
        model.unembed.W_U[plan.label, 0] = 1


def _write_readout(model: SequenceTransformer, plan: BuildPlan) -> None:
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


def _write_fixed(attn: Attention, head: int, plan: BuildPlan, position: int, d_head: int) -> None:
    """Write a head that attends to one position and fetches its token flags."""
    _score_position(attn, head, plan, position, d_head)
    r = len(plan.tokens)
    start = plan.flags.start + position * r
    write_pair(attn, head, plan.flag, slice(start, start + r))


def _score_position(
    attn: Attention, head: int, plan: BuildPlan, position: int, d_head: int
) -> None:
    """Write scores for one position; the sum of the positions' one-hot codes, 1, is a constant
    query."""
    scale = (plan.c * d_head**0.5) ** 0.5
    attn.W_Q[head, plan.position, 0] = scale
    attn.W_K[head, plan.position.start + position, 0] = scale


def _snaps(plan: BuildPlan) -> list[Ramp]:
    """Return one ramp per bit: 0 or 1 from attention weights and flags, at position t alone (two
    layers) or at the last (one layer)."""
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


def _readouts(plan: BuildPlan, start: int, times: float, *, gate: int) -> list[Ramp]:
    """Return one ramp per key, whose argument 2·(bits that agree with it − all) + 3/2 is 3/2 or at
    most −1/2.

    It is active only where ``gate`` is 1, at the last position: otherwise the copying head would
    copy what other positions write.
    """
    ramps, away = [], plan.gate
    for key in plan.keys:
        reads = {start + i: times * (2.0 if one else -2.0) for i, one in enumerate(key.pattern)}
        shift = 1.5 - 2.0 * sum(key.pattern) - away
        ramps.append(Ramp({**reads, gate: away}, shift, _writes(plan, key)))
    return ramps


def _writes(plan: BuildPlan, key: BitPattern) -> dict[int, float]:
    """Return what a key's ramp writes: a label, a source position's code, or a token with the last
    position's code."""
    if isinstance(key.outcome, float):
        return {plan.label.start: key.outcome}
    if isinstance(key.outcome, int):
        return {plan.code.start + key.outcome: 1.0}
    vector = plan.direct * plan.embedding[plan.task.regular.index(key.outcome)]
    written = {plan.symbol.start + i: float(v) for i, v in enumerate(vector) if v != 0}
    return {**written, plan.code.stop - 1: 1.0}


def _write_copy(model: SequenceTransformer, plan: BuildPlan) -> None:
    attn, d_head = model.blocks[-1].attn, model.spec.head_widths[-1]
    if plan.readout:
        write_scores(attn, 0, plan.code, plan.position, plan.c, d_head)
    else:
        _score_position(attn, 0, plan, plan.task.source(0), d_head)
    write_pair(attn, 0, plan.symbol, plan.symbol, plan.b)
