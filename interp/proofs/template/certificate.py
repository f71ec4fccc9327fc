"""How far a template model can be from the answer, from its weights alone (`template` §2.3).

A wildcard stands for any token u of the alphabet, so what is embedded at its positions is

    E_u = Σ_v ε_v E_v,    ε_v = 1 for v = u and 0 for every other v

Each ε_v is a noise symbol of an affine form (:mod:`interp.bounds.affine`), the same one wherever
the wildcard stands. A read that ignores the symbols has ⟨w, E_v⟩ ≈ 0 for every v, in any basis, and
the form keeps what is left of each product. Only two places need more than the range [0, 1] of ε:

    first layer     whether two tokens are equal is not linear in ε. A score is a function of two
                    tokens and two positions: it is computed for all of them, and lies between the
                    least and the largest over pairs of equal tokens where the template repeats a
                    wildcard, over pairs of different ones where it has two
    symbolic label  exactly one ε_v of a wildcard is 1. For every answer u the wildcard of the
                    answer is put to u, and the others to whatever is worst for u's lead

Everything between is bounded by :mod:`interp.bounds.network`, template by template. The forms cover
the function of the stored weights and every evaluation of it in their dtype, so the rounding of
the weights themselves (a change of basis rounds them all) is no separate term, and a weight that is
wrong makes the bound as wide as it has to be. Scores of a match hold with a margin, the FFN's
ramps are flat there, and so in a right model only rounding is left.

A worst case: rounding grows with the widths and with the alphabet, random rows round more kindly.
Not for models with other scores than dot products; the tables take (positions · tokens)² numbers.
"""

from __future__ import annotations

from itertools import product
from math import fsum
from typing import Any

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import Affine, exactly, linear, scale
from interp.bounds.network import embedded, entered, normed, not_covered, read_out, stream_after
from interp.bounds.rounding import UP, Arithmetic
from interp.bounds.scores import linear_heads, weights
from interp.errors import Problems
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate
from interp.tasks.template import TemplateTask
from interp.tasks.template.text import is_wildcard, wildcards

__all__ = ["certificate_of"]

Table = Float64[np.ndarray, "head token pos token pos"]


def certificate_of(model: SequenceTransformer, task: TemplateTask) -> Certificate:
    """The bound on a label's error, or on the share of wrong tokens, of the weights as they are.

    Of a real label the ``margin of the labels`` is half the smallest distance of two of them, less
    the error: where it is positive, the nearest label is the right one. Of a symbolic label the
    ``margin of the logits`` is the least lead of the right token: the error is 0 where it is
    positive, and otherwise 1, which is to say that nothing is known.

    Args:
        model: Any model of the task's tokens with dot-product scores, hidden, damaged or trained.
        task: The template task that it is to solve, on all tokens of both alphabets.

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
    """Most by which a real label is missed."""
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
    """The least lead of the right token over any other one."""
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
    """The least lead of a token over any other one.

    The first noise symbols choose tokens, a block of them for each of the ``letters``. In a block
    one is +1 and the others are −1, which adds 2 g_u − Σ_v g_v: for the letter ``own`` u is the
    token itself, for the others whatever is worst, but not a token that is taken.

    Args:
        logits: Of all tokens, ``[token]``.
        token: The right one.
        first: The id of the first token that a wildcard can be.
        letters: How many wildcards the template has.
        own: Which of them is the answer; None if it is a regular token.
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
    """The ids that a character of a template can be."""
    start = len(task.regular) if is_wildcard(letter) else task.regular.index(letter)
    return slice(start, task.vocabulary if is_wildcard(letter) else start + 1)


def _any_string(model: Any, task: TemplateTask, template: str, ar: Arithmetic) -> Affine:
    """What enters the first block for all strings of a template, ``[1, pos, d_model]``.

    With ε = (1 + ε′)/2 the centre is half the sum of all embeddings (rounded once) and the
    generators are their halves.
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
    return entered(model, Affine(centre, generators, radius), ar)


def _score_tables(model: Any, length: int, ar: Arithmetic) -> tuple[Table, Table]:
    """Least and largest first-layer score of any two tokens at any two positions, query first."""
    vocabulary, attn = model.spec.d_in, model.blocks[0].attn
    ids = np.repeat(np.arange(vocabulary)[:, None], length, axis=1)
    seen = normed(model.blocks[0].ln1, embedded(model, ids, ar), ar)
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
    """Bounds on the scaled products of all queries with all keys, which are known to a radius."""
    found = linear(q, k.centre.T, None, ar)
    size = q.magnitude @ k.magnitude.T
    off = q.magnitude @ k.radius.T + ar.error(q.shape[-1] + 4, size * UP)
    found = Affine(found.centre, found.generators, (found.radius + off * UP) * UP)
    return scale(found, np.asarray(attn.terms["dot"].scale), ar).bounds()


def _scores_of(low: Table, high: Table, task: TemplateTask, template: str) -> Affine:
    """First-layer scores of all strings of a template, ``[1, head, query, key]``."""
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
