"""In-context tasks on random tokens, for models that were not trained on these tasks.

    repeated tokens   BOS  s_0 … s_{p−1}  s_0 … s_{p−1}  s_0 …      period p drawn for every row
    template aba      BOS  α β α  γ δ γ  …                          the third repeats the first
    template same     BOS  α α S  γ δ D  ε ε S  …                   labels S, D drawn for every row

Tokens are drawn uniformly and without replacement, so only the row itself helps to predict one:
what a model gets right it has read in its context (`template` §2.4). ``shuffled`` is the control
with the same tokens without the rule. In repeated tokens the period changes from row to row: a head
that attends to a fixed lag does not solve them.

Random tokens are far from text. A model that fails here may still copy in text, and a head that is
needed here may do something else there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, sampler
from interp.tasks.counterfactual import UNKNOWN, Variable

Ids = NDArray[np.int64]
_Template = Literal["aba", "same"]


@dataclass(frozen=True)
class RepeatedTokens:
    """A block of distinct random tokens, repeated to the end of the row.

    A target is the next token. Positions are scored from the second occurrence of the block's first
    token on: there the token occurred before, and the token after it is the one that followed it
    then.

    Attributes:
        vocabulary: Number of token ids; a row's ids are below it.
        length: Positions of a row, BOS included.
        periods: The least and the largest period that a row may have.
        bos: Id of the first token of a row, never drawn; −1 for none.
        chunk: If above 0, the block is cut into pieces of this many tokens, and every repeat has
            the pieces in a new random order. Then only the token itself, not the period, determines
            the next token, and only inside a piece; only positions there are scored. 0 keeps the
            block whole; 1 is the control with the same tokens and nothing to continue. Periods must
            be multiples of it.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    vocabulary: int
    length: int
    periods: tuple[int, int]
    bos: int = 0
    chunk: int = 0

    def __post_init__(self) -> None:
        problems, need = _check_bos("repeated_tokens", self.vocabulary, self.bos)
        whole = self.chunk >= 0 and all(p % max(self.chunk, 1) == 0 for p in self.periods)
        need(whole, "chunk", f"must divide the periods {self.periods}", self.chunk, "change one")
        rising = len(self.periods) == 2 and 2 <= self.periods[0] <= self.periods[1]
        need(
            rising, "periods", "must be (least, largest), at least 2", self.periods, "e.g. (8, 20)"
        )
        longest, body = max(self.periods, default=0), self.length - (self.bos >= 0)
        need(
            body > longest + 1, "length", f"must leave a repeat of {longest}", self.length, "raise"
        )
        rule = f"must have {longest} tokens to draw"
        need(self.vocabulary - 1 > longest, "vocabulary", rule, self.vocabulary, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``repeated-tokens-8-20``."""
        chunk = [f"chunk-{self.chunk}"] * bool(self.chunk)
        return "-".join(["repeated-tokens", *map(str, self.periods), *chunk])

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` token ids.

        Latents ``[batch, pos]``: ``source`` (the position after the token's last occurrence, which
        holds the token to predict; −1 where it has not occurred), ``previous`` (the token before,
        −1 at the start), ``period``, ``is_repeat`` (whether the token has occurred before).
        """
        rng = np.random.default_rng(seed)
        start, (least, most) = int(self.bos >= 0), self.periods
        piece = max(self.chunk, 1)
        period = piece * rng.integers(least // piece, most // piece + 1, size=n)
        blocks = _distinct(rng, n, most, self.vocabulary, self.bos)
        places = np.arange(self.length + 1 - start)
        at = places % period[:, None]
        if self.chunk:
            at = _reorder_pieces(rng, at, places // period[:, None], self.chunk)
        rows = _after_bos(np.take_along_axis(blocks, at, axis=1), self.bos)
        inputs, targets = rows[:, :-1], rows[:, 1:]
        since = np.arange(self.length) - start  # place in the body, −1 at BOS
        repeated = since >= period[:, None]
        own = np.pad(at, ((0, 0), (start, 0)))[:, : self.length]
        inside = (self.chunk < 2) | (own % piece < piece - 1)
        latents: dict[str, NDArray[Any]] = {
            "source": _last(inputs[:, :, None] == inputs[:, None, :]) + repeated,
            "previous": np.pad(inputs[:, :-1], ((0, 0), (1, 0)), constant_values=-1),
            "period": np.repeat(period[:, None], self.length, axis=1).astype(np.float32),
            "is_repeat": repeated,
        }
        return _batch(inputs, targets, repeated & inside, latents, device)

    def variables(self) -> Iterator[Variable]:
        """Return the variables that :func:`induction_variables` describes."""
        return induction_variables()

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "repeated_tokens", **asdict(self), "periods": list(self.periods)}


@dataclass(frozen=True)
class InContextTemplate:
    """The task of inferring a rule in context, from triples of tokens (`template` §2.1).

    Every triple of a row follows the same rule, with symbols that did not occur earlier in the row.

    Attributes:
        template: ``aba`` (predict the third token of a triple, which is the first) or ``same``
            (predict a triple's label: one token if the two before are equal, another if not).
        vocabulary: Number of token ids; a row's ids are below it.
        examples: Number of triples in a row.
        bos: Id of the first token of a row, never drawn; −1 for none.
        shuffled: Whether to draw the control: the third token is a new symbol (aba) or a random
            label (same), so that there is no rule to find.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    template: _Template
    vocabulary: int
    examples: int = 8
    bos: int = 0
    shuffled: bool = False

    def __post_init__(self) -> None:
        problems, need = _check_bos("in_context_template", self.vocabulary, self.bos)
        known = get_args(_Template)
        rule = f"must be one of {', '.join(known)}"
        need(self.template in known, "template", rule, self.template, "take one")
        need(self.examples >= 2, "examples", "must be at least 2", self.examples, "raise it")
        rule = f"must have {3 * self.examples + 2} tokens to draw"
        enough = self.vocabulary > 3 * self.examples + 2
        need(enough, "vocabulary", rule, self.vocabulary, "raise it or take fewer examples")
        problems.raise_if_any()

    @property
    def length(self) -> int:
        """Positions of a row: BOS and the triples, without the last answer."""
        return 3 * self.examples - 1 + (self.bos >= 0)

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``in-context-same``."""
        return "-".join(["in-context", self.template, *["shuffled"] * self.shuffled])

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` token ids.

        The position before each answer is scored, once the row has shown every kind of answer: from
        the second triple on (aba), or from the first after both labels occurred (same). Latents
        ``[batch, pos]``: ``example`` (the triple's number, −1 at BOS), ``source`` (the position
        that holds the answer; −1 if there is none), ``same`` (whether the triple's first two tokens
        are equal).
        """
        rng = np.random.default_rng(seed)
        drawn = _distinct(rng, n, 3 * self.examples + 2, self.vocabulary, self.bos)
        triples = drawn[:, 2:].reshape(n, self.examples, 3).copy()
        same = np.zeros((n, self.examples), dtype=bool)
        shown = np.broadcast_to(np.arange(self.examples) > 0, same.shape)
        if self.template == "same":
            same = rng.permuted(np.arange(self.examples) % 2 == 0, axis=None)[None].repeat(n, 0)
            same = rng.permuted(same, axis=1)
            triples[..., 1] = np.where(same, triples[..., 0], triples[..., 1])
            told = rng.permuted(same, axis=1) if self.shuffled else same
            triples[..., 2] = np.where(told, drawn[:, :1], drawn[:, 1:2])
            before = np.cumsum(told, 1) - told
            shown = (before > 0) & (np.arange(self.examples) - before > 0)
        elif not self.shuffled:
            triples[..., 2] = triples[..., 0]
        rows = _after_bos(triples.reshape(n, -1), self.bos)
        return self._template_batch(rows, same, shown, device)

    def _template_batch(
        self, rows: Ids, same: NDArray[Any], shown: NDArray[Any], device: str
    ) -> Batch:
        start = int(self.bos >= 0)
        inputs, targets = rows[:, :-1], rows[:, 1:]
        place = np.arange(self.length) - start
        example = np.where(place >= 0, place // 3, -1)
        asks = (place % 3 == 1) & (place >= 0)
        mask = asks & shown[:, example]
        latents = {
            "example": np.broadcast_to(example, inputs.shape).astype(np.float32),
            "source": np.where(asks, _last(targets[:, :, None] == inputs[:, None, :]), -1),
            "same": same[:, example] & (example >= 0),
        }
        return _batch(inputs, targets, mask, latents, device)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "in_context_template", **asdict(self)}


def induction_variables() -> Iterator[Variable]:
    """Yield the intermediate variables of an induction circuit, for interchange interventions.

    They are ``previous``, the token before each position, exchanged at all positions at once;
    ``source``, the position whose previous token equals the current token; and ``answer``, the
    token at that position. The first two leave the answer undetermined at every position for which
    not exactly one source qualifies.
    """
    yield Variable("previous", _answer_if_previous, everywhere=True)
    yield Variable("source", _answer_if_source)
    yield Variable("answer", _answer_if_answer)


def _answer_if_previous(base: Batch, source: Batch) -> Tensor:
    """Return the base's token at the position whose previous token in the source is the base's
    current one."""
    return _token_at(base, source.latents["previous"][:, None] == base.inputs[:, :, None])


def _answer_if_source(base: Batch, source: Batch) -> Tensor:
    """Return the base's token at the position that the source row's answer is copied from."""
    found = _token_at(base, source.latents["previous"][:, None] == source.inputs[:, :, None])
    return found.masked_fill(~source.mask, UNKNOWN)


def _answer_if_answer(base: Batch, source: Batch) -> Tensor:
    return source.targets.masked_fill(~source.mask, UNKNOWN)


def _token_at(base: Batch, marked: Tensor) -> Tensor:
    """Return the base's token at the marked key ``[row, query, key]``, if exactly one key not after
    the query is marked."""
    marked = marked.tril()
    token: Tensor = (marked * base.inputs[:, None]).sum(-1)
    return token.masked_fill(marked.sum(-1) != 1, UNKNOWN)


def _check_bos(kind: str, vocabulary: int, bos: int) -> tuple[Problems, Any]:
    problems = Problems(kind)
    rule = f"must be −1 (none) or a token below the vocabulary of {vocabulary}"
    problems.need(-1 <= bos < vocabulary, "bos", rule, bos, "take one of them")
    return problems, problems.need


def _distinct(rng: np.random.Generator, n: int, most: int, vocabulary: int, bos: int) -> Ids:
    """Draw ids ``[n, most]``, distinct within a row, without BOS."""
    there = vocabulary - (bos >= 0)
    drawn = np.stack([rng.choice(there, size=most, replace=False) for _ in range(n)])
    return drawn + (drawn >= bos) if bos >= 0 else drawn


def _reorder_pieces(rng: np.random.Generator, at: Ids, turn: Ids, chunk: int) -> Ids:
    """Return the place in the block for every position, with the block's pieces in a new random
    order in every repeat after the first."""
    piece, rows = at // chunk, np.arange(len(at))[:, None]
    drawn = rng.random((len(at), int(turn.max()) + 1, int(piece.max()) + 1))[rows, turn, piece]
    keys = np.where(turn > 0, drawn, piece)
    order = np.lexsort((at, keys, turn), axis=1)
    return np.take_along_axis(at, order, axis=1)


def _last(equal: NDArray[np.bool_]) -> Ids:
    """Return the last key before each query that ``equal`` [row, query, key] marks; −1 if none
    is."""
    earlier = np.tril(equal, -1)
    return np.where(earlier.any(-1), equal.shape[-1] - 1 - earlier[..., ::-1].argmax(-1), -1)


def _after_bos(body: Ids, bos: int) -> Ids:
    return np.pad(body, ((0, 0), (1, 0)), constant_values=bos) if bos >= 0 else body


def _batch(
    inputs: Ids, targets: Ids, mask: NDArray[Any], latents: dict[str, NDArray[Any]], device: str
) -> Batch:
    as_tensor = {name: torch.from_numpy(np.array(values)) for name, values in latents.items()}
    ids, wanted, scored = (torch.from_numpy(np.array(a)) for a in (inputs, targets, mask))
    return Batch(ids, wanted, scored, as_tensor).to(device)
