"""Programs of heads that share notes on the text, all fitted together.

    notes       what a place says of its text, the same for all heads: weighted sums of its last
                tokens and of averages over more of them, clipped at 0
    lookups     shared programs fetch notes from earlier places, and more is noted of what they
                fetch, ``_STAGES`` times
    a program   attention ∝ exp(Σ_t a_t · term t + key notes + query notes · [key is the first]
                + query notes · [key is the query] + Σ_r (query notes)_r (key notes)_r)

The terms are those of ``token_terms`` that join a query with a key: lags, equal tokens, the latest
of a kind, the same word, line or sentence. Only tokens, places and the model's embedding of tokens
are read, nothing that its layers computed; but notes and lookups are a small network of their own.
The fit makes the overlap of all heads large; some cross-entropy keeps faint attention.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from analyses.benchmarks.token_terms import KINDS, TokenTerms

__all__ = ["NotedPrograms", "Texts", "fit_noted_programs", "overlaps"]

_JOINS = ("lag ", "equal", "followed ", "the latest ", "in ")
"""Beginnings of the names of terms that join a query with a key."""
_BACK, _FADING, _MEAN = 4, (0.5, 0.8), 16
"""Number of last tokens that notes are made of one by one; what is left of a token at the next
place, in averages over all before; and length of the even average."""
_STAGES, _LOOKUPS, _FETCHED, _RANK, _LOOKUP_RANK = 2, 16, 16, 12, 8
"""Number of times that lookups are made, of shared programs each time, of numbers that each
fetches, and of products of query and key in a head's program and in a shared one."""
_STEPS, _RATE, _SLOWER, _FASTER = 1500, 0.01, 0.3, 4
"""Steps of the fit, the rate, and its factors for notes and for terms."""
_PATTERNS, _LEAST, _MOST = 864, 8, 36
"""Number of patterns of all heads in a step; and the least and the most rows that it has."""
_WARM, _OVERLAP = 0.3, 0.9
"""From this share of the steps on the overlap has this weight in the fit."""
_PRICE, _NOTE_PRICE = 3e-4, 3e-5
"""Penalties on the squares of what a head has to itself, and of what heads share."""
_AT_ONCE = 12
"""Number of rows whose terms or patterns are computed together. It bounds memory."""


class Texts:
    """Rows of tokens as programs read them.

    Attributes:
        tokens: ``[row, pos]``.
        joins: Terms that join query and key, ``[row, query, key, term]``.
        names: Their names.
        places: What stands at each place and before it, ``[row, pos, feature]``.
    """

    def __init__(self, vocabulary: TokenTerms, tokens: Int[Tensor, "row pos"]) -> None:
        self.tokens, found = tokens, list[Tensor]()
        for some in torch.split(tokens, _AT_ONCE):
            terms = vocabulary.terms(some)
            which = [i for i, name in enumerate(terms.names) if name.startswith(_JOINS)]
            found.append(terms.values[..., which])
        self.joins, self.names = torch.cat(found), [terms.names[i] for i in which]
        kind = one_hot(vocabulary.kinds(tokens), len(KINDS)).float()
        common = torch.stack([tokens == one for one in vocabulary.common], -1).float()
        along = vocabulary.directions(tokens)
        along[:, 0] = 0
        own = torch.cat([kind, common, along], -1)
        rows, length = tokens.shape
        lag = torch.arange(length)[:, None] - torch.arange(length)
        weights = [(lag == back).float() for back in range(_BACK)]
        weights += [(left**lag * (1 - left**2) ** 0.5).tril() for left in _FADING]
        weights.append(((lag >= 0) & (lag < _MEAN)).float() / sqrt(_MEAN))
        far = torch.arange(length).float().log1p().expand(rows, -1)
        seen = self.joins[..., self.names.index("equal")].amax(-1)
        self.places = torch.cat(
            [*(one @ own for one in weights), far[..., None], seen[..., None]], -1
        )


class _Lookup(nn.Module):
    """Programs over terms and notes."""

    def __init__(self, heads: int, terms: int, notes: int, rank: int) -> None:
        super().__init__()
        self.terms = nn.Parameter(torch.zeros(terms, heads))
        self.first = nn.Parameter(torch.zeros(heads))
        self.of_key, self.of_resting, self.of_itself = (
            nn.Parameter(torch.zeros(notes, heads)) for _ in range(3)
        )
        self.query, self.key = (
            nn.Parameter(0.3 / sqrt(notes) * torch.randn(heads, notes, rank)) for _ in range(2)
        )
        self.even = nn.Parameter(torch.zeros(heads, rank))

    def products(self, notes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of query and key, ``[row, head, pos, rank]``; the first has none."""
        query = torch.einsum("npf,hfr->nhpr", notes, self.query) + self.even[:, None]
        key = torch.einsum("npf,hfr->nhpr", notes, self.key)
        return query, torch.cat([torch.zeros_like(key[:, :, :1]), key[:, :, 1:]], 2)

    def parts(self, notes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the notes of a key, of a query that rests and of a query that sees itself
        add, ``[row, head, pos]`` each."""
        key, resting, itself = (
            (notes @ one).transpose(1, 2) for one in (self.of_key, self.of_resting, self.of_itself)
        )
        return torch.cat([torch.zeros_like(key[..., :1]), key[..., 1:]], -1), resting, itself

    def forward(self, joins: Tensor, notes: Tensor) -> Float[Tensor, "row head query key"]:
        """Return the logarithms of attention."""
        query, left = self.products(notes)
        key, resting, itself = self.parts(notes)
        score = query @ left.transpose(-1, -2) + torch.einsum("nqkt,th->nhqk", joins, self.terms)
        score = score + key[:, :, None] + torch.diag_embed(itself)
        rests = resting[..., None] + self.first[:, None, None]
        score = torch.cat([score[..., :1] + rests, score[..., 1:]], -1)
        length = score.shape[-1]
        unseen = ~torch.ones(length, length, dtype=torch.bool).tril()
        return score.masked_fill(unseen, -torch.inf).log_softmax(-1)


class NotedPrograms(nn.Module):
    """Programs of heads and the notes that they share.

    Args:
        fit: Texts whose features have the middle and the scale that notes are measured in.
        heads, notes: The numbers of heads and of notes.
    """

    middle: Tensor
    scale: Tensor

    def __init__(self, fit: Texts, heads: int, notes: int) -> None:
        super().__init__()
        features, terms = fit.places.shape[-1], fit.joins.shape[-1]
        flat = fit.places.flatten(0, 1)
        self.register_buffer("middle", flat.mean(0))
        self.register_buffer("scale", flat.std(0) + 0.05)
        self.note, self.plain = nn.Linear(features, notes), nn.Linear(features, notes // 4)
        size, fetched = notes + notes // 4, _LOOKUPS * _FETCHED
        self.lookups = nn.ModuleList(
            _Lookup(_LOOKUPS, terms, size, _LOOKUP_RANK) for _ in range(_STAGES)
        )
        self.fetch = nn.ModuleList(nn.Linear(size, fetched) for _ in range(_STAGES))
        self.further = nn.ModuleList(nn.Linear(size + fetched, notes) for _ in range(_STAGES))
        self.heads = _Lookup(heads, terms, size, _RANK)

    def notes(self, joins: Tensor, places: Tensor) -> Float[Tensor, "row pos note"]:
        """Return the notes of all places: those that are not clipped come last."""
        features = (places - self.middle) / self.scale
        plain, noted = self.plain(features), self.note(features).relu()
        for look, fetch, further in zip(self.lookups, self.fetch, self.further, strict=True):
            known = torch.cat([noted, plain], -1)
            values = fetch(known).unflatten(-1, (_LOOKUPS, _FETCHED)).transpose(1, 2)
            fetched = (look(joins, known).exp() @ values).transpose(1, 2).flatten(2)
            noted = noted + further(torch.cat([known, fetched], -1)).relu()
        return torch.cat([noted, plain], -1)

    def forward(self, joins: Tensor, places: Tensor) -> Float[Tensor, "row head query key"]:
        """Return the logarithms of attention."""
        found: Tensor = self.heads(joins, self.notes(joins, places))
        return found

    @torch.no_grad()
    def attention(self, texts: Texts) -> Float[Tensor, "head row query key"]:
        """Return the attention of every head's program."""
        both = (torch.split(one, _AT_ONCE) for one in (texts.joins, texts.places))
        return torch.cat([self(*some).exp() for some in zip(*both, strict=True)]).transpose(0, 1)

    @torch.no_grad()
    def words(self, texts: Texts, decode: Callable[[int], str], count: int = 8) -> list[str]:
        """Describe every head's program by the parts whose scores vary most: a term by its name,
        and notes by the places where their sum is largest.

        Args:
            texts: Rows to describe it on.
            decode: A function from a token to its text.
            count: The number of parts that are named.
        """
        notes, each = self.notes(texts.joins, texts.places), self.heads
        length = texts.tokens.shape[1]
        spread = texts.joins[:, torch.ones(length, length).tril().bool()].std((0, 1))
        factors, kinds = each.products(notes), ("key", "query that rests", "query that sees itself")
        parts = dict(zip(kinds, each.parts(notes), strict=True))

        def peak(values: Tensor) -> str:
            row, place = divmod(int(values[:, 1:].argmax()), length - 1)
            some = texts.tokens[row, max(0, place - 2) : place + 2].tolist()
            return repr("".join(map(decode, some)))

        told = list[str]()
        for head, strengths in enumerate(each.terms.T.tolist()):
            said = [
                (float(abs(one) * by), f"{one:+.1f}·[{name}]")
                for name, one, by in zip(texts.names, strengths, spread, strict=True)
            ]
            for what, part in parts.items():
                size = float(part[:, head].std())
                said.append((size, f"{size:+.1f}·[{what} as in {peak(part[:, head])}]"))
            for query, key in zip(*(one[:, head].unbind(-1) for one in factors), strict=True):
                size, ends = float(query.std() * key.std()), (peak(query), peak(key))
                said.append(
                    (size, "{:+.1f}·[query as in {} with key as in {}]".format(size, *ends))
                )
            words = " ".join(word for _, word in sorted(said, reverse=True)[:count])
            told.append(f"attention ∝ exp({words} …)")
        return told


def overlaps(seen: Tensor, said: Tensor) -> Float[Tensor, "*row query"]:
    """Return the overlap of two attentions, for each query after the first."""
    seen, said = seen[..., 1:, :], said[..., 1:, :]
    return torch.minimum(seen, said).sum(-1) / torch.maximum(seen, said).sum(-1)


@torch.enable_grad()
def fit_noted_programs(
    texts: Texts, patterns: Float[Tensor, "head row query key"], notes: int, steps: int = _STEPS
) -> NotedPrograms:
    """Fit the programs of heads together with the notes that they share.

    Args:
        texts: The texts.
        patterns: Attention on them; queries after the first are counted.
        notes: The number of notes that are clipped; a quarter as many are not.
        steps: The number of steps of the fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = NotedPrograms(texts, len(patterns), notes)
        order = torch.cat([torch.randperm(len(texts.tokens)) for _ in range(steps)])
    rows = min(max(_PATTERNS // len(patterns), _LEAST), _MOST)
    kinds: tuple[list[Tensor], ...] = ([], [], [])
    for name, one in found.named_parameters():
        own = 1 if name.startswith("heads.") else 2
        kinds[0 if name.endswith((".terms", ".first")) else own].append(one)
    rates = (_FASTER * _RATE, _RATE, _SLOWER * _RATE)
    prices = (_PRICE, _PRICE, _NOTE_PRICE)
    groups = [{"params": some, "lr": rate} for some, rate in zip(kinds, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 1.0, 2 * (1 - step / steps))
    )
    for step in range(steps):
        some = order[step * rows : (step + 1) * rows]
        said, seen = found(texts.joins[some], texts.places[some]), patterns[:, some].float()
        seen = seen.transpose(0, 1)
        lost = -(seen * said.clamp_min(-50))[:, :, 1:].sum(-1).mean()
        if step > _WARM * steps:
            lost = (1 - _OVERLAP) * lost - 2 * _OVERLAP * overlaps(seen, said.exp()).mean()
        paid = sum(
            price * one.square().sum()
            for price, some in zip(prices, kinds, strict=True)
            for one in some
        )
        optimizer.zero_grad()
        (len(patterns) * lost + paid).backward()
        nn.utils.clip_grad_norm_(found.parameters(), 5.0 * len(patterns))
        optimizer.step()
        schedule.step()
    return found
