"""Token tasks solved by one kind of attention: the ground truth for language-model head roles.

    y_t = Σ_j A_tj value(x_j),   A_tj the attention of query t to key j

A *relation* says which keys a query attends to: the previous token, earlier equal tokens, the
tokens after them, the first position, everything before, a window, or as a random table of token
pairs says; one position that follows from the query's own (``mirror`` n − i, ``halved`` i // 2),
smaller or greater symbols, every third position, or everything before but the first
(``all-but-first``). A *value* says what is passed on: the token itself (copying), its negative,
another token, or a class.

Models are built for these tasks, rather than trained on them: each has a one-head solution by
design (induction a two-head one). A trained model may find another solution.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, sampler

Relation = Literal[
    "previous-token",
    "duplicate-token",
    "induction",
    "sink",
    "uniform",
    "local",
    "dense",
    "mirror",
    "halved",
    "smaller",
    "greater",
    "periodic",
    "all-but-first",
]
Value = Literal["copy", "negative", "relabel", "classes"]

_CLASSES = 3
_SCALE = 10.0
_SPREAD = 2.0


@dataclass(frozen=True)
class TokenRelation:
    """At every position, the mean of a value over the keys that are in a relation with the query.

    Token 0 is the beginning of a row, 1 … ``symbols`` are symbols. A row is token 0 and then random
    symbols; for ``induction`` it is a block of distinct symbols, repeated; for ``sink`` the first
    position has a symbol too, whose value is the answer.

    Attributes:
        relation: Which keys are in relation with the query: see the module's text.
        value: The value that each key passes on: ``copy`` (10 × the one-hot token), ``negative``,
            ``relabel`` (a fixed cyclic permutation of the symbols, under which no symbol stays the
            same) or ``classes`` (which of three classes the symbol is in). Token 0 has the value 0.
        symbols: The number of different symbols.
        length: Positions of a row.
        window: Width of the relation ``local``: the query's own position and window − 1 before it;
            for ``periodic`` the period: its own position and every window-th before it.
        seed: Seed of the permutation of symbols and of the table of ``dense``.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    relation: Relation
    value: Value = "relabel"
    symbols: int = 12
    length: int = 17
    window: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("TokenRelation")
        need = problems.need
        kinds: tuple[tuple[str, Any], ...] = (("relation", Relation), ("value", Value))
        for name, kind in kinds:
            allowed, given = get_args(kind), getattr(self, name)
            need(given in allowed, name, f"must be one of {', '.join(allowed)}", given, "pick one")
        need(self.symbols >= 3, "symbols", "must be at least 3", self.symbols, "add symbols")
        need(self.length >= 5, "length", "must be at least 5", self.length, "lengthen the rows")
        fits = 2 <= self.window < self.length
        need(fits, "window", "must be 2 to length − 1", self.window, f"length is {self.length}")
        enough = self.relation != "induction" or self.symbols >= self._block
        rule = f"must be at least {self._block}: a block's symbols are distinct"
        need(enough, "symbols", rule, self.symbols, "add symbols or shorten the rows")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``relation-induction-copy-12-17``."""
        return f"relation-{self.relation}-{self.value}-{self.symbols}-{self.length}"

    @property
    def outputs(self) -> int:
        """The length of the target vector at each position."""
        return _CLASSES if self.value == "classes" else self.symbols + 1

    def values(self) -> Float64[Tensor, "token output"]:
        """Return the value that each token passes on, ``[token, output]``."""
        found = torch.zeros(self.symbols + 1, self.outputs, dtype=torch.float64)
        symbols = torch.arange(1, self.symbols + 1)
        if self.value == "classes":
            found[symbols, symbols % _CLASSES] = 1.0
            return found
        worth = -_SCALE if self.value == "negative" else _SCALE
        found[symbols, self._partner_symbols() if self.value == "relabel" else symbols] = worth
        return found

    def table(self) -> Float64[Tensor, "token token"]:
        """Return the scores of ``dense``, ``[query token, key token]``: normal, standard deviation
        2."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.symbols + 1, self.symbols + 1)
        return _SPREAD * torch.randn(shape, generator=generator, dtype=torch.float64)

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos]``, targets ``[batch, pos, output]`` in float64.

        The latent ``attention`` ``[batch, query, key]`` is A.
        """
        generator = torch.Generator().manual_seed(seed)
        tokens = self._tokens(n, generator)
        attention = self.attention(tokens)
        scored = attention.sum(-1) > 0
        targets = attention @ self.values()[tokens]
        return Batch(tokens, targets, scored, {"attention": attention}).to(device)

    def attention(self, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch query key"]:
        """Return the attention A that solves the task; all zero for a query without a key in
        relation."""
        causal = torch.ones(len(tokens), self.length, self.length).tril()
        weights = self._weights(tokens) * causal
        total = weights.sum(-1, keepdim=True)
        return torch.where(total > 0, weights / total.where(total > 0, 1.0), 0.0).double()

    def _weights(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "#batch query key"]:
        position = torch.arange(self.length)
        lag = position[:, None] - position
        same = (tokens[:, :, None] == tokens[:, None, :]) & (lag > 0)
        first = (position == 0).expand(self.length, -1)
        if self.relation == "duplicate-token":
            return (same | (first & ~same.any(-1, keepdim=True))).double()
        if self.relation == "induction":
            return torch.nn.functional.pad(same, (1, 0))[..., :-1].double()
        if self.relation == "dense":
            return self.table()[tokens[:, :, None], tokens[:, None, :]].exp()
        if self.relation in ("smaller", "greater"):
            apart = tokens[:, :, None] - tokens[:, None, :]
            apart = apart if self.relation == "smaller" else -apart
            return ((apart > 0) & (tokens > 0)[:, None, :]).double()
        return self.by_position().double()[None]

    def by_position(self) -> Bool[Tensor, "query key"]:
        """Return which key positions each query position should attend to.

        Keys after the query are not always excluded; :meth:`attention` masks them.

        Raises:
            KeyError: for a relation that depends on the tokens and not on positions alone.
        """
        position = torch.arange(self.length)
        lag = position[:, None] - position
        wanted = {
            "previous-token": lag == 1,
            "uniform": lag >= 0,
            "local": (lag >= 0) & (lag < self.window),
            "sink": (position == 0).expand(self.length, -1),
            "mirror": position == self.length - position[:, None],
            "halved": position == position[:, None] // 2,
            "periodic": (lag >= 0) & (lag % self.window == 0) & (position > 0),
            "all-but-first": (lag >= 0) & (position > 0),
        }
        return wanted[self.relation]

    def _tokens(self, n: int, generator: torch.Generator) -> Int[Tensor, "batch pos"]:
        if self.relation == "induction":
            order = torch.rand(n, self.symbols, generator=generator).argsort(-1)
            tokens = order[:, torch.arange(self.length - 1) % self._block] + 1
        else:
            tokens = torch.randint(1, self.symbols + 1, (n, self.length - 1), generator=generator)
        start = torch.zeros(n, 1, dtype=torch.int64)
        if self.relation == "sink":
            start = torch.randint(1, self.symbols + 1, (n, 1), generator=generator)
        return torch.cat([start, tokens], dim=1)

    def _partner_symbols(self) -> Int[Tensor, " symbol"]:
        """Return the symbol that each symbol is replaced by: the next one on a random circle."""
        generator = torch.Generator().manual_seed(self.seed)
        circle = torch.randperm(self.symbols, generator=generator)
        other = torch.empty_like(circle)
        other[circle] = circle.roll(-1)
        return other + 1

    @property
    def _block(self) -> int:
        return self.length // 2

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "token_relation", **asdict(self)}
