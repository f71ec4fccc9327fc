"""Programs over tokens that stand in for the attention of a language model's heads.

    attention ∝ exp(Σ_t a_t · term t of (query, key))

The terms are the same for all heads, and each is 0 or 1, or a plain number (:class:`TokenTerms`):

    place     the lag (a table); the key is the first token; how far along it is
    kind      what kind of token the key is, and the token before it: 13 kinds by spelling, and the
              most common tokens
    matching  the key is an earlier equal token, or followed one; the same word, line, sentence;
              the latest token of each kind
    resting   how much the first token gets, by the query, the token before it, and its place
    likeness  directions in which the model's embeddings of these texts' tokens vary most, so that a
              rare token counts by those it is like: of the key, of the query where it looks at
              itself or at the first token, and of every pair of query and key

Only a term's strength a_t is fitted, on attention of given texts: the problem is convex, with a
price on large strengths. Nothing that a layer computed is read, so what a program says of a text
needs no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

__all__ = ["KINDS", "Terms", "TokenTerms", "attention", "fit_strengths", "kind_of", "program_words"]

_KNOTS = (*range(9), 10, 12, 16, 24, 32, 48, 64, 96, 128)
"""Lags at which the table of lags has entries."""

_COMMON = 16
_DIRECTIONS, _PAIRED = 32, 16
"""Number of embedding directions that are terms by themselves, and number of those that also form
products of query and key."""
_FLAT = 1e-3
"""A direction with a singular value of at most this share of the largest is left out: tokens hardly
vary in it."""

_STEPS, _RATE = 200, 0.1
_PRICE = 3e-4
"""Penalty on the square of a strength in the fit, in nats per query."""

_SIGNS = (
    ("stop", ".!?;:"),
    ("comma", ","),
    ("quote", "\"'`“”‘’"),
    ("open", "([{<"),
    ("close", ")]}>"),
)
KINDS = (
    "line break",
    "space",
    "digit",
    *(name for name, _ in _SIGNS),
    "sign",
    "Capital word",
    "word",
    "Capital piece",
    "piece",
)


def kind_of(word: str) -> str:
    """Return the kind of a token, judged by its spelling."""
    text = word.strip(" ▁")
    if "\n" in word:
        return "line break"
    if not text:
        return "space"
    if text[0].isdigit():
        return "digit"
    for name, signs in _SIGNS:
        if text[0] in signs:
            return name
    if not text[0].isalpha():
        return "sign"
    part = "word" if word[0] in " ▁" else "piece"
    return f"Capital {part}" if text[0].isupper() else part


@dataclass(frozen=True)
class Terms:
    """The terms of some rows of tokens.

    Attributes:
        values: ``[row, query, key, term]``.
        names: What each term is, in words; directions are named by their part and number.
    """

    values: Float[Tensor, "row query key term"]
    names: tuple[str, ...]


@dataclass
class TokenTerms:
    """What programs may know about tokens: their kinds, which ones are common, and directions in
    which their embeddings vary.

    Attributes:
        tokens: The rows that programs are fitted on, ``[row, pos]``.
        decode: A function from a token to its text.
        embedding: The model's embedding of tokens, ``[token, d_model]``.
    """

    tokens: Int[Tensor, "row pos"]
    decode: Callable[[int], str]
    embedding: Float[Tensor, "token d_model"]
    common: list[int] = field(init=False)

    def __post_init__(self) -> None:
        often = Counter(self.tokens[:, 1:].flatten().tolist())
        self.common = [token for token, _ in often.most_common(_COMMON)]
        self._kinds: dict[int, int] = {}
        ids = torch.tensor(sorted(often))
        weight = torch.tensor([often[int(one)] for one in ids]).float().sqrt()[:, None]
        unit = self._unit(ids)
        self._middle = (unit * weight).sum(0) / weight.sum()
        _, size, axes = torch.linalg.svd((unit - self._middle) * weight, full_matrices=False)
        self._axes = axes[:_DIRECTIONS][size[:_DIRECTIONS] > _FLAT * size[0]].T
        found = (unit - self._middle) @ self._axes
        self._axes = self._axes / found.std(0)
        self.known = [int(one) for one in ids if often[int(one)] > 1]

    def _unit(self, tokens: Tensor) -> Tensor:
        return normalize(self.embedding[tokens].detach().float().cpu(), dim=-1)

    def directions(self, tokens: Tensor) -> Float[Tensor, "*token direction"]:
        """Return the coordinates of tokens along the directions."""
        found: Tensor = (self._unit(tokens) - self._middle) @ self._axes
        return found

    def kinds(self, tokens: Tensor) -> Int[Tensor, "row pos"]:
        """Return the number of each token's kind."""
        for one in set(tokens.flatten().tolist()) - {*self._kinds}:
            self._kinds[one] = KINDS.index(kind_of(self.decode(one)))
        return torch.tensor([[self._kinds[one] for one in row] for row in tokens.tolist()])

    def terms(self, tokens: Int[Tensor, "row pos"]) -> Terms:
        """Return all terms on some rows."""
        rows, length = tokens.shape
        place = torch.arange(length)
        lag = (place[:, None] - place).clamp_min(0)
        kinds = self.kinds(tokens)
        kind = one_hot(kinds, len(KINDS)).float()
        common = torch.stack([tokens == one for one in self.common], -1).float()
        along = self.directions(tokens)
        some = along[..., :_PAIRED]
        kind_before, along_before = _before(kind), _before(some)
        earlier = (lag > 0)[None]
        equal = (tokens[:, :, None] == tokens[:, None]) & earlier
        followed = (tokens[:, :, None] == _before(tokens)[:, None]) & (place > 0)
        same_kind = (kinds[:, :, None] == kinds[:, None]) & earlier
        first = (place == 0).float()[None, None, :, None]
        repeated = equal.any(-1).float()[..., None]
        far = place.float().log1p()[None, :, None].expand(rows, -1, -1)

        found, names = list[Tensor](), list[str]()

        def add(values: Tensor, words: Sequence[str]) -> None:
            found.append(values.expand(rows, length, length, -1))
            names.extend(words)

        def of_keys(values: Tensor) -> Tensor:
            return values[:, None] * (1 - first)

        def part_labels(part: str, values: Tensor) -> list[str]:
            return [f"{part} {i}" for i in range(values.shape[-1])]

        spelt = [repr(self.decode(one)) for one in self.common]
        knots = [one for one in _KNOTS if one < length]
        add(_table(lag, knots)[None], [f"lag {one}" for one in knots])
        add(first, ["the first"])
        add(kind[:, None], [f"{one}" for one in KINDS])
        add(common[:, None], spelt)
        add(kind_before[:, None], [f"after {one}" for one in KINDS])
        add(of_keys(torch.cat([repeated, far], -1)), ["seen before", "log of its place"])
        add(torch.stack([equal, followed], -1).float(), ["equal", "followed an equal"])
        latest = [_latest((kinds == i)[:, None] & earlier) for i in range(len(KINDS))]
        latest += [_latest(one) for one in (same_kind, equal, followed & earlier)]
        what = [*KINDS, "token of its kind", "equal", "that followed an equal"]
        add(torch.stack(latest, -1).float(), [f"the latest {one}" for one in what])
        begun = ~torch.isin(kinds, torch.tensor([KINDS.index(one) for one in KINDS[-2:]]))
        ends = [kinds == KINDS.index("line break")]
        ends.append(ends[0] | (kinds == KINDS.index("stop")))
        units = [
            begun.long().cumsum(-1),
            *(_before(one.long().cumsum(-1)[..., None])[..., 0] for one in ends),
        ]
        for unit, words in zip(units, ("word", "line", "sentence"), strict=True):
            apart = unit[:, :, None] - unit[:, None]
            near = torch.stack([apart == 0, apart == 1], -1).float()
            add(near, [f"in its {words}", f"in the {words} before"])
        query = torch.cat([kind, kind_before, common, repeated, far], -1)
        of_query = [*KINDS, *(f"after {one}" for one in KINDS), *spelt, "seen before", "far along"]
        add(first * query[:, :, None], [f"the first, if the query is {one}" for one in of_query])
        rest, rest_before = first * along[:, :, None], first * along_before[:, :, None]
        itself = torch.eye(length)[None, :, :, None] * some[:, :, None]
        pairs = (some[:, :, None, :, None] * some[:, None, :, None, :]).flatten(3) * (1 - first)
        for part, values in (
            ("key", of_keys(along)),
            ("token before the key", of_keys(along_before)),
            ("query that rests", rest),
            ("token before a query that rests", rest_before),
            ("query that sees itself", itself),
            ("pair", pairs),
        ):
            add(values, part_labels(part, values))
        return Terms(torch.cat(found, -1), tuple(names))


def _before(values: Tensor) -> Tensor:
    """Return the values of each position's predecessor, ``[row, pos, …]``; 0 at the first
    position."""
    return torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1]], 1)


def _table(lag: Tensor, knots: Sequence[int]) -> Float[Tensor, "query key knot"]:
    """Return the weights of a table of lags: 1 at an entry's own lag and 0 at those of the others,
    with linear interpolation in log lag between them."""
    each = [np.interp(np.log1p(lag.numpy()), np.log1p(knots), one) for one in np.eye(len(knots))]
    return torch.from_numpy(np.stack(each, -1)).float()


def _latest(keys: Tensor) -> Tensor:
    """Return a mask of the last of each query's keys, ``[row, query, key]``."""
    place = torch.arange(keys.shape[-1])
    last = (keys * (place + 1)).amax(-1, keepdim=True) - 1
    return keys & (last == place)


def fit_strengths(
    terms: Terms,
    patterns: Float[Tensor, "head row query key"],
    own: Float[Tensor, "head row query key"] | None = None,
) -> Float[Tensor, "term head"]:
    """Fit the strengths of the terms of all heads: those with the least cross-entropy with the
    heads' attention.

    Args:
        terms: The terms of the rows.
        patterns: Attention on the rows; queries after the first are counted.
        own: For each head one more term of its own; its strength comes last.
    """
    rows, length = terms.values.shape[:2]
    query, key = torch.tril_indices(length, length)
    query, key = query[query > 0], key[query > 0]
    x = terms.values[:, query, key].flatten(0, 1)  # [row and pair, term]
    p = patterns[:, :, query, key].flatten(1, 2).T.contiguous().float()  # [row and pair, head]
    place = (torch.arange(rows)[:, None] * length + query).flatten()
    count, heads = rows * length, p.shape[1]
    each = place[:, None].expand(-1, heads)
    more = [] if own is None else [own[:, :, query, key].flatten(1, 2).T.contiguous()]
    strengths = torch.zeros(x.shape[1] + len(more), heads)
    optimizer = torch.optim.Adam([strengths], lr=_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, 2 * (1 - step / _STEPS))
    )
    for _ in range(_STEPS):
        score = x @ strengths[: x.shape[1]]
        for one in more:
            score += one * strengths[-1]
        top = score.new_full((count, heads), -torch.inf).scatter_reduce(0, each, score, "amax")
        said = (score - top[place]).exp()
        said /= said.new_zeros(count, heads).index_add(0, place, said)[place]
        off = said - p
        slope = torch.cat([x.T @ off, *((one * off).sum(0, keepdim=True) for one in more)])
        strengths.grad = slope / (rows * (length - 1)) + 2 * _PRICE * strengths
        optimizer.step()
        schedule.step()
    return strengths


def attention(
    terms: Terms,
    strengths: Float[Tensor, " term"],
    own: Float[Tensor, "row query key"] | None = None,
) -> Float[Tensor, "row query key"]:
    """Return the attention that a head's program predicts, with one more term of the head's own if
    it is given."""
    score = terms.values @ strengths[: len(terms.names)]
    if own is not None:
        score = score + own * strengths[-1]
    length = score.shape[-1]
    unseen = ~torch.ones(length, length, dtype=torch.bool).tril()
    return score.masked_fill(unseen, -torch.inf).softmax(-1)


def program_words(
    terms: Terms, strengths: Float[Tensor, " term"], vocabulary: TokenTerms, count: int = 8
) -> str:
    """Describe a head's program in words: the terms whose scores vary most over the rows.

    Args:
        terms, strengths: The terms of the rows that the program was fitted on, and its strengths.
        vocabulary: Names the directions by the tokens that lie farthest along them.
        count: The number of terms that are named.
    """
    length = terms.values.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    tokens = torch.tensor(vocabulary.known)
    along = vocabulary.directions(tokens)
    spread = terms.values[:, allowed].std((0, 1))
    parts: dict[str, list[int]] = {}
    said = list[tuple[float, str]]()
    for i, name in enumerate(terms.names):
        part, _, number = name.rpartition(" ")
        if number.isdigit() and part not in ("lag", ""):
            parts.setdefault(part, []).append(i)
        else:
            said.append((float(strengths[i].abs() * spread[i]), f"{strengths[i]:+.1f}·[{name}]"))
    for part, where in parts.items():
        own = strengths[where]
        if part == "pair":
            size = round(len(where) ** 0.5)
            u, s, v = torch.linalg.svd(own.reshape(size, size))
            for i in range(2):
                ends = (
                    _ends(along[:, :_PAIRED] @ one, tokens, vocabulary) for one in (u[:, i], v[i])
                )
                said.append((float(s[i]), "{:+.1f}·[query {} with key {}]".format(s[i], *ends)))
        else:
            score = along[:, : len(where)] @ own
            words = _ends(score, tokens, vocabulary)
            said.append((float(score.std()), f"{score.std():+.1f}·[{part} {words}]"))
    return (
        f"attention ∝ exp({' '.join(words for _, words in sorted(said, reverse=True)[:count])} …)"
    )


def _ends(score: Tensor, tokens: Tensor, vocabulary: TokenTerms) -> str:
    order = tokens[score.argsort()].tolist()
    most, least = (
        [repr(vocabulary.decode(one)) for one in some] for some in (order[:-4:-1], order[:3])
    )
    return f"like {', '.join(most)}, unlike {', '.join(least)}"
