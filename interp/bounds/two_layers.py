"""Two attention layers on rows with open tokens: bounds from least ratios.

For models of two attention layers without FFN or norm. A cell fixes the last token of a row and
some others; the remaining, *open* tokens may be any symbol that the cell does not name. At the last
position T the logit of the answer exceeds another one by

    D(x_T) + Σ_g Σ_s A_g(s) O_g(x_s),    A_g(s) = e^{σ_g(x_T, x_s)} / Σ_u e^{σ_g(x_T, x_u)}

x is the stream after the first layer. D, the direct path, and O_g, the OV path of head g of the
second layer, are linear in it, and its score σ_g is linear in x_T and in x_s. A linear function of
x at position s, with token a there, is

    φ(a, s) + Σ_h Σ_u w_h(u, z_u) φ_h(u, z_u) / Σ_u w_h(u, z_u),    w_h = e^{score of a on z_u}

For each head h of the first layer this is a *ratio* in which every open token z_u has terms of its
own. Its least value over all open tokens can be found exactly: λ is at most the ratio just when Σ_u
w (φ − λ) ≥ 0, and that sum is least where each of its terms is (:func:`least_ratio`).

Induction attends one token back. So keys of the second layer are distinguished by their own token
and the one before (the *case*); what other tokens can add is the range of a ratio. With x̄ the
middle of the possible x of a position in a case, δ = x − x̄, and r another key,

    σ(x_T, x_s) − σ(x_T, x_r) = x_T·M(x̄_s − x̄_r) + x̄_T·M(δ_s − δ_r) + δ_T·M(δ_s − δ_r)

two linear functions, and a product of two deviations that is bounded coordinate by coordinate. So
the weights e^{σ_s − σ_r} of the second layer lie in an interval in each case. The margin is at
least D's least value plus one least ratio for each head of the second layer.

The bound does not use that open tokens differ from each other, nor that all ratios are of the same
tokens. If the first layer spreads its attention, the combined ratios allow more than any row does,
and the bound is low; it is never false. It is for the model as a real function of its weights, not
for its evaluation in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import perm
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from interp.bounds.affine import Affine, Arithmetic, exactly
from interp.bounds.attention import linear_heads, score_forms, weights
from interp.bounds.network import entry_stream, unmet

Array = Float64[np.ndarray, "..."]
Watch = Callable[[Iterable[Any]], Iterable[Any]]
Linear = tuple[Array, Array]
"""The matrix and the bias of an affine map."""

UNKNOWN = -1
"""Code in a cell's tokens for a position whose token is left open: any token that the cell does not
name."""

_STEPS = 16
"""Largest number of Newton steps towards the least ratio; three or four usually suffice. Stopping
earlier gives a lower bound that is still valid."""

LEAST_WEIGHT = 1e-250
"""If the sum of all weights may be below this, the least value is used as the bound of the weighted
mean. Relative rounding errors are not bounded for numbers near the smallest float64 ones."""

_MOST_OFF = 0.01
"""Largest error by rounding, in nats, with which anything is proved; a larger one counts as
infinite. Margins are a few nats."""

_MOST_SPLIT = 2**33
"""Cells are split further only while the array entries of all of them together are at most this
many. That is some minutes of work (:func:`work`: about 2^25 entries a second)."""

_NUMBERS = 2**22
"""Number of array entries that are computed at once for several cells. It bounds memory."""

_MOST_NUMBERS = 2**24
"""Largest number of array entries that a single cell may need at once. With more, the model's
tokens are refused as too many."""


def not_two_layers(model: Any) -> str:
    """Return why a model is not of this kind; empty if it is."""
    spec = model.spec
    needed = {
        "two layers": spec.n_layers == 2,
        "heads in both": all(spec.heads),
        "no FFN": not any(spec.ffn_widths) and not spec.input_ffn,
        "no norm": spec.norm == "none",
        "scores that are dot products alone": spec.score == "dot" and spec.lag_bias == "none",
        "positions in the stream": spec.positions != "rope",
        "no a·I and b·I": not spec.identity_qk and not spec.identity_ov,
        "a softmax": spec.normalizer == "softmax",
        "a residual stream": spec.residual,
        "causal attention that sees itself": spec.causal and not spec.mask_self,
        "token inputs": spec.input == "tokens",
        "two outputs or more": spec.d_out > 1,
        "weights that are finite numbers": finite(model),
    }
    return unmet("two attention layers need", needed)


def finite(model: Any) -> bool:
    """Return whether every weight is a finite number."""
    return all(bool(np.isfinite(weights(one)).all()) for one in model.parameters())


def too_many(model: Any, tokens: int) -> str:
    """Return why so many tokens are too many to distinguish; empty if they are not."""
    numbers = _numbers(model, tokens)
    if numbers <= _MOST_NUMBERS:
        return ""
    return f"{tokens} tokens are too many: cases and other tokens would make {numbers:.2g} numbers"


def work(model: Any, tokens: int, length: int) -> int:
    """Return the number of array entries computed to bound one cell, a measure of its running time.

    About 2^25 of them take a second.

    Args:
        model: A model for which :func:`not_two_layers` is empty.
        tokens: Number of tokens that are distinguished.
        length: Positions of a row.
    """
    return _numbers(model, tokens) * length * (length + 1) // 2


def _numbers(model: Any, tokens: int) -> int:
    """Return how many numbers one cell needs at once: cases, options, heads, coordinates."""
    spec = model.spec
    return int(tokens**3 * spec.heads[0] * max(spec.head_widths[1], spec.d_out))


@dataclass(frozen=True)
class TwoLayers:
    """The contributions of each token at each position, in a model of two attention layers.

    Attributes:
        tokens: Ids of the tokens that are distinguished, ``[token]``.
        scores: Scores of the first layer, ``[head, query pos, query token, key pos, key token]``.
        own: The stream without the first layer's heads, ``[pos, token, d_model]``.
        passed: The outputs of the first layer's heads, ``[head, pos, token, d_model]``.
        queries: For each head of the second layer the matrix and bias from the stream to a query,
            scaled, and rotated so that few coordinates matter.
        keys: The same for keys.
        values: For each head of the second layer W_V W_O W_U, and its bias.
        readout: W_U, and the part of the logits that does not depend on tokens.
        off: The largest change of any ratio of these numbers by our rounding.
    """

    tokens: Int[np.ndarray, " token"]
    scores: Array
    own: Array
    passed: Array
    queries: tuple[Linear, ...]
    keys: tuple[Linear, ...]
    values: tuple[Linear, ...]
    readout: Linear
    off: float


def _tables(model: Any, tokens: Int[np.ndarray, " token"], length: int) -> TwoLayers:
    """Compute the tables of a model for rows of ``length`` tokens.

    Args:
        model: A model for which :func:`not_two_layers` is empty.
        tokens: Every token that a row may have.
        length: Positions of a row.
    """
    ar, (first, second) = Arithmetic("real"), (block.attn for block in model.blocks)
    each = exactly(np.repeat(weights(model.embed.W_E)[tokens][:, None], length, axis=1))
    entering = entry_stream(model, each, ar)
    parts = (entering.centre, entering.generators, entering.radius)
    x = Affine(*(np.moveaxis(part, -3, -2) for part in parts))
    flat = x.reshape(1, length * len(tokens), x.shape[-1])
    lags = np.zeros((flat.shape[1], flat.shape[1]), dtype=np.int64)
    scores = score_forms(first, flat, flat, lags, ar)
    w_o = weights(first.W_O)
    passed = np.einsum("pthd,hdm->hptm", linear_heads(x, first.W_V, first.b_V, ar).centre, w_o)
    own = x.centre + weights(first.b_O)
    flat_keys = passed.reshape(-1, passed.shape[-1])
    turns = [main_directions(flat_keys @ weights(w)) for w in second.W_K]
    sizes = (-1, length, len(tokens), length, len(tokens))
    linear = _second_layer(model, turns, np.asarray)
    found = TwoLayers(tokens, scores.centre[0].reshape(sizes), own, passed, *linear, 0.0)
    return replace(found, off=_off(found, model, turns, float(scores.radius.max())))


def main_directions(rows: Array) -> Array:
    """Return the principal directions of some vectors, whose mean is not subtracted.

    Args:
        rows: The vectors, ``[row, width]``; entries that are not finite count as zero.

    Returns:
        An orthogonal matrix (up to rounding) ``[width, width]``. Its columns are the eigenvectors
        of rowsᵀ rows, the largest eigenvalue's last.
    """
    known = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    largest = max(float(np.abs(known).max(initial=0.0)), 2.0**-500)
    directions: Array = np.linalg.eigh((known / largest).T @ (known / largest))[1]
    return directions


def _second_layer(
    model: Any, turns: Sequence[Array], of: Callable[[Array], Array]
) -> tuple[tuple[Linear, ...], tuple[Linear, ...], tuple[Linear, ...], Linear]:
    """Return queries, keys and values of each head of the second layer, and the readout, as in
    :class:`TwoLayers`; ``of`` is applied to every weight before any product."""
    attn, unembed = model.blocks[1].attn, of(weights(model.W_U))
    queries, keys, values = [], [], []
    for g, turn in enumerate(map(of, turns)):
        scale = float(attn.terms["dot"].scale)
        to_query, to_key = of(weights(attn.W_Q[g])), of(weights(attn.W_K[g]))
        queries.append((to_query @ turn * scale, of(weights(attn.b_Q[g])) @ turn * scale))
        keys.append((to_key @ turn, of(weights(attn.b_K[g])) @ turn))
        out = of(weights(attn.W_O[g])) @ unembed
        values.append((of(weights(attn.W_V[g])) @ out, of(weights(attn.b_V[g])) @ out))
    readout = unembed, of(weights(attn.b_O)) @ unembed + of(weights(model.b_U))
    return tuple(queries), tuple(keys), tuple(values), readout


def _off(tables: TwoLayers, model: Any, turns: Sequence[Array], off: float) -> float:
    """Return the largest change of a ratio by rounding, of its values and of its weights.

    All products are repeated with absolute values, so that no number that is summed on the way from
    the weights to a ratio exceeds ``size``, whatever cancels. A chain of such sums has fewer than
    ``steps`` roundings. Rotated coordinates change a product of a query and a key by the rotation's
    deviation from orthogonality. Weights have an error of a factor of at most e^(2 off) and of
    2^-44, which changes a ratio by that share of its values' range.
    """
    attn = model.blocks[0].attn
    heads, length, _, width = tables.passed.shape
    before = np.abs(weights(model.embed.W_E)).max(0) + np.abs(weights(attn.b_O))
    if model.pos_embed is not None:
        before = before + np.abs(weights(model.pos_embed.W_pos)).max(0)
    sent = np.einsum("m,hmd->hd", before, np.abs(weights(attn.W_V))) + np.abs(weights(attn.b_V))
    stream = before + np.einsum("hd,hdm->m", sent, np.abs(weights(attn.W_O)))

    def most(one: Linear) -> Array:
        return np.asarray(stream @ one[0] + one[1])

    queries, keys, values, readout = _second_layer(model, turns, np.abs)
    pairs = [(most(q), most(k)) for q, k in zip(queries, keys, strict=True)]
    largest = [float(q @ k) for q, k in pairs]
    largest += [float(most(one).max()) for one in (*values, readout)]
    size = 4 * max(float(stream.max()), *largest)
    identities = [np.abs(turn @ turn.T - np.eye(len(turn))).max() for turn in turns]
    turned = float(max(identities)) + len(turns[0]) * 2.0**-50
    size_turned = turned * max(float(q.sum() * k.sum()) for q, k in pairs)
    steps = 64 * (width + len(turns[0]) + heads * length + 64)
    total = size * (steps * 2.0**-53 + 8 * off + 2.0**-42) + 2 * size_turned + 2.0**-200
    return total if total < _MOST_OFF else np.inf


@dataclass(frozen=True)
class Answered:
    """The number of rows that are answered rightly, and where heads of the second layer attend.

    Attributes:
        right: The number of rows proved right in the given cells, in those that were split once,
            and so on.
        cells: The number of cells at each of these levels.
        rows: The number of all rows.
        elsewhere: The largest attention of each head of the second layer to keys other than the
            token after the earlier occurrence of the last token, ``[head]``; 1 if the cells do not
            determine it.
    """

    right: tuple[int, ...]
    cells: tuple[int, ...]
    rows: int
    elsewhere: Float64[np.ndarray, " head"]


Listed = tuple[Sequence[int], Int[np.ndarray, "cell letter"], Int[np.ndarray, " cell"]]
"""Which cells have rows of one pattern, as a tuple of three: which letter stands at each position
of a row; for each cell the token of each letter, or :data:`UNKNOWN` (for the same letters in all
cells, and never for the letter of the last position); and for each cell the token whose logit must
be the largest."""


@np.errstate(all="ignore")
def count_right(
    model: Any,
    symbols: Int[np.ndarray, " token"],
    listed: Sequence[Listed],
    ar: Arithmetic,
    watch: Watch = iter,
) -> Answered:
    """Count the rows that are proved to be answered rightly, of those whose different letters are
    different symbols.

    A cell that is not proved is split by the symbol of the open letter to which the last position
    attends most in the first layer, as long as there are not too many cells.

    Args:
        model: A model for which :func:`not_two_layers` is empty.
        symbols: The tokens that an open letter may be.
        listed: The cells of each pattern of letters; patterns have one length.
        ar: The arithmetic, which counts the multiplications.
        watch: A wrapper of the loop over patterns, such as a progress bar.

    Raises:
        ValueError: if there are :func:`too_many` tokens.
    """
    tokens = np.unique(np.concatenate((symbols, *(c[c != UNKNOWN] for _, c, _ in listed))))
    if reason := too_many(model, len(tokens)):
        raise ValueError(reason)
    tables = _tables(model, tokens, len(listed[0][0]))
    levels: dict[int, tuple[int, int]] = {}
    elsewhere, rows = np.zeros(len(tables.queries)), 0
    for pattern, cells, answers in watch(listed):
        most = _MOST_SPLIT // work(model, len(tokens), len(pattern))
        found = _levels(tables, np.asarray(pattern), symbols, cells, answers, most, ar)
        rows += len(cells) * _rows_of(cells, symbols)
        for level, (count, right) in enumerate(found):
            before = levels.get(level, (0, 0))
            levels[level] = before[0] + count, before[1] + right
        seen = _elsewhere(tables, np.asarray(pattern), symbols, cells)
        elsewhere = np.maximum(elsewhere, seen)
    counts = levels.values()
    return Answered(tuple(n for _, n in counts), tuple(n for n, _ in counts), rows, elsewhere)


def _levels(
    tables: TwoLayers,
    places: Int[np.ndarray, " pos"],
    symbols: Int[np.ndarray, " token"],
    cells: Int[np.ndarray, "cell letter"],
    answers: Int[np.ndarray, " cell"],
    most: int,
    ar: Arithmetic,
) -> Iterator[tuple[int, int]]:
    """Yield the number of cells and of proved rows: for the given cells, those split once, and so
    on."""
    while len(cells):
        proved, looked = np.zeros(len(cells), dtype=bool), np.zeros(cells.shape[1])
        for part in _parts(tables, cells):
            row = _Cells(tables, cells[part][:, places], symbols, ar)
            proved[part] = row.margins(answers[part]) > 0
            np.add.at(looked, places, row.look_shares())
        letters = np.flatnonzero(cells[0] == UNKNOWN)
        free = ~(symbols[None, :, None] == cells[:, None]).any(-1)  # [cell, symbol]
        count = int(free[0].sum())
        yield len(cells), int(proved.sum()) * _rows_of(cells, symbols)
        left = np.flatnonzero(~proved)
        if not len(letters) or len(left) * count > most:
            return
        split = np.repeat(cells[left], count, axis=0)
        split[:, letters[looked[letters].argmax()]] = symbols[np.nonzero(free[left])[1]]
        cells, answers = split, np.repeat(answers[left], count)


def _rows_of(cells: Int[np.ndarray, "cell letter"], symbols: Int[np.ndarray, " token"]) -> int:
    """Return the number of rows of a cell: its open letters are different symbols that it does not
    name."""
    return perm(int((~np.isin(symbols, cells[0])).sum()), int((cells[0] == UNKNOWN).sum()))


def _elsewhere(
    tables: TwoLayers,
    places: Int[np.ndarray, " pos"],
    symbols: Int[np.ndarray, " token"],
    cells: Int[np.ndarray, "cell letter"],
) -> Float64[np.ndarray, " head"]:
    """Return :attr:`Answered.elsewhere` for one pattern."""
    found, ids = np.zeros(len(tables.queries)), cells[:, places]
    after = int(np.flatnonzero(places == places[-1])[0]) + 1
    if after == ids.shape[1] or (ids[:, after] == UNKNOWN).any():
        return np.ones_like(found)
    for part in _parts(tables, ids):
        row = _Cells(tables, ids[part], symbols, Arithmetic())
        for g in range(len(found)):
            highest = [row.scores(g, key, after)[1].max((1, 2)) for key in range(row.length)]
            least = (1 - 2.0**-40) / np.exp(np.stack(highest)).sum(0)
            found[g] = np.fmax(found[g], np.nan_to_num(1 - least, nan=1.0).max())
    return found


def _parts(tables: TwoLayers, cells: Int[np.ndarray, "cell some"]) -> Iterator[slice]:
    """Yield slices of cells that fit into memory at once."""
    heads, _, tokens, _ = tables.passed.shape
    numbers = max(len(tables.keys[0][1]), len(tables.readout[1]))
    size = max(1, _NUMBERS // (tokens**3 * heads * numbers))
    for start in range(0, len(cells), size):
        yield slice(start, start + size)


class _Cells:
    """Cells that fix the tokens of the same positions.

    Arrays have the axes ``[cell, head, own, before, number, option]``: the first layer's head, the
    token at a key and the one before it (the case), the numbers that are bounded, and the tokens
    that another position may have.
    """

    def __init__(
        self,
        tables: TwoLayers,
        ids: Int[np.ndarray, "cell pos"],
        symbols: Int[np.ndarray, " token"],
        ar: Arithmetic,
    ) -> None:
        self.tables, self.length, self.ar = tables, ids.shape[1], ar
        order = np.argsort(tables.tokens)
        place = {int(token): int(at) for at, token in zip(order, tables.tokens[order], strict=True)}
        self.options = []
        for at in range(self.length):
            may = ids[:, at : at + 1]
            if (may == UNKNOWN).any():
                free = ~(symbols[None, :, None] == ids[:, None]).any(-1)
                may = np.stack([symbols[row] for row in free])
            self.options.append(np.vectorize(place.__getitem__, otypes=[np.int64])(may))

    def margins(self, answers: Int[np.ndarray, " cell"]) -> Float64[np.ndarray, " cell"]:
        """Return a lower bound on the answer's lead over all other logits in each cell; NaN or −∞
        if none is known."""
        last = self.length - 1
        counts = [options.shape[1] for options in self.options]
        given = [s for s in range(1, self.length) if counts[s] == counts[s - 1] == 1]
        if not given:
            return np.full(len(answers), -np.inf)
        total = self._ahead(last, None, self.tables.readout, answers)[:, 0, 0]
        for g in range(len(self.tables.queries)):
            total = total + self._through(g, given, answers)
        total[np.arange(len(answers)), answers] = np.inf
        return np.asarray(total.min(-1))

    def look_shares(self) -> Float64[np.ndarray, " pos"]:
        """Return the attention of the last position to each position in the first layer, summed
        over all heads and cells."""
        looks = self._looks(self.length - 1, None)
        means = np.stack([w.mean(-1)[:, :, 0, 0, 0] for w in looks], -1)
        found: Float64[np.ndarray, " pos"] = (means / means.sum(-1, keepdims=True)).sum((0, 1))
        return found

    def scores(self, g: int, key: int, ref: int) -> tuple[Array, Array]:
        """Return bounds on the score of head g at a key, minus that at another key ``ref`` whose
        token and the one before are known: ``[cell, own, before]`` each."""
        t, last = self.tables, self.length - 1
        if key == ref:
            return (np.zeros((len(self.options[0]), 1, 1)),) * 2
        query, sent = self._middle(last, key, t.queries[g])
        at_key, key_sent = self._middle(key, key, t.keys[g])
        at_ref, ref_sent = self._middle(ref, key, t.keys[g])
        apart = at_key - at_ref
        own = (self._own(last, key, t.queries[g]) * apart).sum(-1)
        low, high = self._ends(last, key, t.queries[g][0], apart, own)
        for place, middle, sign in ((key, key_sent, 1), (ref, ref_sent, -1)):
            known = -sign * (query * middle).sum(-1)
            ends = self._ends(place, key, t.keys[g][0], sign * query, known)
            low, high = low + ends[0], high + ends[1]
        of_keys = self._beside(key, key, t.keys[g][0], key_sent)
        of_keys = of_keys + self._beside(ref, key, t.keys[g][0], ref_sent)
        both = (self._beside(last, key, t.queries[g][0], sent) * of_keys).sum(-1) + t.off
        return low - both, high + both

    def _through(self, g: int, given: list[int], answers: Int[np.ndarray, " cell"]) -> Array:
        """Return the least amount that head g of the second layer adds to the answer's lead,
        ``[cell, logit]``."""
        looks, values = [], []
        ref = max(given, key=lambda s: self._middle_score(g, s))
        for key in range(self.length):
            ends = np.exp(np.stack(self.scores(g, key, ref), -1))  # [cell, own, before, end]
            looks.append(ends.reshape(len(ends), 1, -1))
            least = self._ahead(key, key, self.tables.values[g], answers)
            both = np.repeat(least, 2, axis=2)  # at either end, [cell, own, before and end, logit]
            values.append(np.moveaxis(both.reshape(len(both), -1, both.shape[-1]), 1, 2))
        return self._least(looks, values)

    def _ahead(
        self, query: int, key: int | None, to: Linear, answers: Int[np.ndarray, " cell"]
    ) -> Array:
        """Return the least lead of the answer in ``x @ to``, ``[cell, own, before, logit]``."""
        base, rows = self._own(query, key, to), np.arange(len(answers))
        passed = [
            p[rows, :, :, :, answers, None] - p for p in self._head_outputs(query, key, to[0])
        ]
        least = self._least(self._looks(query, key), passed).sum(1)
        found: Array = base[rows, :, :, answers][..., None] - base + least
        return found

    def _middle_score(self, g: int, key: int) -> float:
        query, _ = self._middle(self.length - 1, key, self.tables.queries[g])
        keys, _ = self._middle(key, key, self.tables.keys[g])
        return float((query * keys).sum(-1).mean())

    def _middle(self, query: int, key: int, to: Linear) -> tuple[Array, Array]:
        """Estimate ``x @ to`` at a position, with every open token's terms at their mean, as
        ``[cell, own, before, number]``; return also the part of it that comes from the first
        layer's heads.

        Bounds are on deviations from the estimate, and hold whatever it is; a good estimate makes
        them tight.
        """
        looks, passed = self._looks(query, key), self._head_outputs(query, key, to[0])
        total: Any = sum(w.mean(-1, keepdims=True) for w in looks)
        sent: Any = sum((w / total * p).mean(-1) for w, p in zip(looks, passed, strict=True))
        sent = sent.sum(1)
        return self._own(query, key, to) + sent, sent

    def _ends(
        self, query: int, key: int, to: Array, along: Array, known: Array
    ) -> tuple[Array, Array]:
        """Return bounds on the first layer's output at a position along a direction, plus a known
        number: ``[cell, own, before]`` each."""
        looks = self._looks(query, key)
        passed = [
            (p * along[:, None, ..., None]).sum(-2, keepdims=True)
            for p in self._head_outputs(query, key, to)
        ]
        low = self._least(looks, passed).sum(1)[..., 0]
        high = self._least(looks, [-p for p in passed]).sum(1)[..., 0]
        return low + known, known - high

    def _beside(self, query: int, key: int, to: Array, middle: Array) -> Array:
        """Return the largest distance of coordinates from their middle, ``[cell, own, before,
        number]``."""
        looks, passed = self._looks(query, key), self._head_outputs(query, key, to)
        low = self._least(looks, passed).sum(1) - middle
        high = -self._least(looks, [-p for p in passed]).sum(1) - middle
        return np.asarray(np.maximum(np.abs(low), np.abs(high)))

    def _least(self, looks: Sequence[Array], values: Sequence[Array]) -> Array:
        return least_ratio(looks, values, self.tables.off, self.ar)

    def _looks(self, query: int, key: int | None) -> list[Array]:
        """Return weights of the first layer at a position whose token is known, or at the key
        itself, up to a factor for each query: an array for each position that it can attend to."""
        t, own, found = self.tables, self.options[query], []
        heads = np.arange(len(t.scores))[None, :, None, None]
        for place in range(query + 1):
            options = self.options[place][:, None, None]
            scores = t.scores[heads, query, own[:, None, :, None], place, options]
            if query != key:
                found.append(self._align_axes(place, scores[:, :, 0, :, None], key))
            elif place == key:
                found.append(np.diagonal(scores, axis1=2, axis2=3)[..., None, None, None])
            elif place == key - 1:
                found.append(scores[..., None, None])
            else:
                found.append(scores[:, :, :, None, None])
        top = -_smallest([-s.max(-1, keepdims=True) for s in found])
        return [np.exp(s - top) for s in found]

    def _head_outputs(self, query: int, key: int | None, to: Array) -> list[Array]:
        """Return what the first layer's heads bring to a position from each position, as ``x @
        to``."""
        table = self.tables.passed @ to
        heads = np.arange(len(table))[None, :, None]
        return [
            self._align_axes(place, table[heads, place, self.options[place][:, None]], key)
            for place in range(query + 1)
        ]

    def _align_axes(self, place: int, values: Array, key: int | None) -> Array:
        """Move ``[cell, head, option, number]`` of a position to the axes of all arrays; if the
        case fixes the position's token, its options are on the axes of the case."""
        if key is not None and place == key:
            return values[:, :, :, None, :, None]
        if key is not None and place == key - 1:
            return values[:, :, None, :, :, None]
        return np.moveaxis(values, 2, -1)[:, :, None, None]

    def _own(self, query: int, key: int | None, to: Linear) -> Array:
        """Return ``x @ to`` at a position without the first layer's heads, ``[cell, own, 1,
        number]``."""
        own: Array = (self.tables.own[query] @ to[0] + to[1])[self.options[query]][:, :, None]
        return own if query == key else own[:, :1]


def least_ratio(
    looks: Sequence[Array], values: Sequence[Array], off: float, ar: Arithmetic
) -> Array:
    """Return the least Σ_u w_u(z_u) φ_u(z_u) / Σ_u w_u(z_u) over all choices of z, or a little
    less.

    Newton's method on λ ↦ Σ_u min_z w_u(z) (φ_u(z) − λ), which is zero at the least ratio. For any
    λ and z the ratio is at least λ plus that sum, if it is negative, over the least Σ_u w_u; and it
    is at least the least φ.

    Args:
        looks: The weights w_u > 0 for each u, ``[*shape, option]``; shapes are broadcast.
        values: The values φ_u, likewise.
        off: The number that is subtracted for rounding.
        ar: The arithmetic, which counts the multiplications.

    Returns:
        The least ratios, ``[*shape]``.
    """
    pairs = list(zip(looks, values, strict=True))
    least = _smallest([v.min(-1) for v in values])
    ratio: Any = least
    for _ in range(_STEPS):
        terms = [w * (v - ratio[..., None]) for w, v in pairs]
        best = [term.argmin(-1)[..., None] for term in terms]
        above = sum(_take_along(w * v, at) for (w, v), at in zip(pairs, best, strict=True))
        before = ratio
        ratio = above / sum(_take_along(w, at) for (w, _), at in zip(pairs, best, strict=True))
        ar.multiplications += 2 * sum(term.size for term in terms)
        if not (np.abs(ratio - before) > 2.0**-40 * np.abs(ratio)).any():
            break
    lows = [(w * (v - ratio[..., None])).min(-1) for w, v in pairs]
    rounded = sum(map(np.abs, lows)) * 2.0**-46
    total: Any = sum(w.min(-1) for w in looks)
    found = np.maximum(ratio + np.minimum(sum(lows) - rounded, 0.0) / total, least)
    return np.asarray(np.where(total > LEAST_WEIGHT, found, least) - off)


def _take_along(values: Array, at: Int[np.ndarray, "..."]) -> Array:
    shape = (*np.broadcast_shapes(values.shape[:-1], at.shape[:-1]), values.shape[-1])
    found = np.take_along_axis(np.broadcast_to(values, shape), at, -1)
    return np.asarray(found[..., 0])


def _smallest(parts: Sequence[Array]) -> Array:
    found: Any = parts[0]
    for part in parts[1:]:
        found = np.minimum(found, part)
    return found
