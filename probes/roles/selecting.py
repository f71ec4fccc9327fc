"""Attention that a predicate selects: even over the keys for which the predicate holds, and nowhere
else.

A compiled head attends to all keys for which a predicate of query and key holds, in equal parts.
How near a head comes to that is the overlap of its attention with this even attention,

    closeness = mean over queries of  Σ_j min(p(i, j), [j selected] / c_i)

for c_i selected keys: 1 minus the total variation distance between the two. The predicates are:

    fixed      one position j = f(i), whatever f is
    related    the key's token is smaller than, greater than, equal to, … the query's token, as
               numbers
    periodic   j ≡ i + r, or j ≡ r, modulo some p ≥ 2
    even       all keys, or all up to the query; with or without the first position

A predicate is chosen on some rows and tested on others, so that the number of predicates that are
tried does not bias the test. If one token begins every row, predicates are tried with and without
its position, because compiled heads attend there when they select nothing else.

A query counts if some of the keys that it may attend to are selected and some are not. Attention
must be normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Selected = Bool[Tensor, "#row query key"]

OTHERS = "equal, itself left out"
"""Name of the relation "the key's token equals the query's, at another position". Attending to
these keys is a role of its own."""

_RELATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "equal": torch.eq,
    OTHERS: torch.eq,
    "different": torch.ne,
    "smaller": torch.gt,
    "smaller or equal": torch.ge,
    "greater": torch.lt,
    "greater or equal": torch.le,
}
"""Name of a relation, as the key's token to the query's → function of (query's tokens, key's
tokens) that is True where it holds. The arguments' order is why ``smaller`` is ``torch.gt``."""


@dataclass(frozen=True)
class Chosen:
    """A predicate of query and key.

    Attributes:
        words: The predicate in a few words.
        selects: A function from the tokens ``[row, pos]`` to a mask of the selected keys.
    """

    words: str
    selects: Callable[[Tensor], Selected]


@dataclass(frozen=True)
class Seen:
    """One head's attention on some rows.

    Attributes:
        pattern: The attention pattern, normalised to sum to one over keys.
        inputs: The rows' inputs.
        counted: True for the queries that count.
        allowed: True for the keys that a query may attend to.
        begun: Whether one token begins every row and occurs nowhere else.
    """

    pattern: Float[Tensor, "row query key"]
    inputs: Tensor
    counted: Bool[Tensor, "row query"]
    allowed: Bool[Tensor, "query key"]
    begun: bool

    def half(self, which: int) -> Seen:
        """Return the same head's attention on every second row, starting at row ``which`` (0 or
        1)."""
        rows = slice(which, None, 2)
        return replace(
            self,
            pattern=self.pattern[rows],
            inputs=self.inputs[rows],
            counted=self.counted[rows],
        )

    def fixed(self) -> Chosen:
        """Return the predicate that selects, for each query, the position with most attention on
        average over rows."""
        at = (self.pattern.mean(0) * self.allowed).argmax(-1)
        table = torch.nn.functional.one_hot(at, len(at)).bool()[None]
        queries = (self.counted.any(0) & (self.allowed.sum(-1) > 1)).nonzero()[:, 0]
        return Chosen(formula(at[queries], queries), partial(_whatever, keys=table))

    def related(self) -> Chosen:
        """Return the relation between tokens whose keys the attention is closest to."""
        return self._closest(
            one
            for words in _RELATIONS
            for one in self._first_variants(words, partial(_relation_keys, words=words))
        )

    def periodic(self) -> Chosen:
        """Return the predicate that selects every p-th position, with the period p and the shift
        to which attention, averaged over rows, is closest.

        The measure is the module's closeness. The shift is counted from the query's own position
        or from position 0.
        """
        counted = self.counted.double()
        mean = (self.pattern * counted[..., None]).sum(0) / counted.sum(0).clamp_min(1)[:, None]
        scores, shifts = self._by_period(mean), _shifts(len(mean))
        best = scores.nan_to_num(-1.0)
        which = int((best >= best.max() - _TIE).nonzero()[0, 0])
        ends = 1 + self.begun
        period, shift, own = shifts[which // ends]
        return list(self._period(period, shift, own=own))[which % ends]

    def even(self) -> Chosen:
        """Return the set of positions (all, or all up to the query; with or without the first) over
        which attention is closest to even."""
        return self._closest(self._classes(), whole=True)

    def _closest(self, tried: Iterable[Chosen], *, whole: bool = False) -> Chosen:
        def score(one: Chosen) -> float:
            found = closeness(self, one.selects(self.inputs), whole=whole)
            return float(found.nanmean().nan_to_num(-1.0))

        return max(tried, key=score)

    def _first_variants(
        self, words: str, selects: Callable[[Tensor], Selected]
    ) -> Iterator[Chosen]:
        """Yield a predicate; if one token begins every row, yield it without and with the first
        position instead."""
        if not self.begun:
            yield Chosen(words, selects)
            return
        yield Chosen(words, partial(_with_first, selects=selects, first=False))
        words = f"{words}, and the first position"
        yield Chosen(words, partial(_with_first, selects=selects, first=True))

    def _period(self, period: int, shift: int, *, own: bool) -> Iterator[Chosen]:
        """Yield the predicates that select every p-th position, counted from the query's own or
        from position 0."""
        place = torch.arange(self.allowed.shape[-1])
        keys = _remainders(place, period, own=own) == shift
        words = f"every {_ORDINALS.get(period, f'{period}th')} position"
        if own:
            words += f" from {shift} after its own" if shift else " from its own"
        else:
            words += f" from {shift}"
        return self._first_variants(words, partial(_whatever, keys=keys[None]))

    def _by_period(self, mean: Float[Tensor, "query key"]) -> Float[Tensor, " tried"]:
        """Return the closeness of mean attention to even attention over every p-th position.

        One number for each period and shift, in the order of :func:`_shifts`; if one token begins
        every row, two: without and with the first position. All shifts of a period are measured at
        once, since each key belongs to one of them.
        """
        place, counted = torch.arange(len(mean)), self.counted.any(0)
        inner = self.allowed.double()
        if self.begun:
            inner[:, 0] = 0
        found = []
        for period in range(2, _periods(len(mean))):
            both = []
            for own in (True, False):
                remainder = _remainders(place, period, own=own)
                count = inner.new_zeros(len(mean), period).scatter_add(1, remainder, inner)
                for first in (False, True)[: 1 + self.begun]:
                    many = count + first * self.allowed[:, :1]
                    even = 1 / many.clamp_min(1)
                    part = torch.minimum(mean, even.gather(1, remainder)) * inner
                    close = torch.zeros_like(count).scatter_add(1, remainder, part)
                    if first:
                        close = close + torch.minimum(mean[:, :1], even) * self.allowed[:, :1]
                    counts = counted[:, None] & (many > 0)
                    counts &= many < self.allowed.sum(-1, keepdim=True)
                    both.append((close * counts).sum(0) / counts.sum(0))
            found.append(torch.stack(both, dim=1).flatten())
        return torch.cat(found)

    def _classes(self) -> Iterator[Chosen]:
        size = self.allowed.shape[-1]
        past = torch.ones(size, size, dtype=torch.bool).tril()
        for words, keys in (("everything", past | True), ("everything up to itself", past)):
            yield Chosen(words, partial(_whatever, keys=keys[None]))
            later = keys.clone()
            later[:, 0] = False
            yield Chosen(f"{words} but the first position", partial(_whatever, keys=later[None]))


_ORDINALS = {2: "second", 3: "third"}

_TIE = 1e-12
"""Periods whose closeness differs by less than this count as equally close, and the first of them
is taken. Smaller differences are rounding."""


def _periods(size: int) -> int:
    """Return the smallest period that is not tried, because fewer than three of its positions fit
    in a row."""
    return max(3, (size + 1) // 2)


def _shifts(size: int) -> list[tuple[int, int, bool]]:
    """Return every (period, shift, whether the shift is counted from the query's own position)."""
    return [
        (period, shift, own)
        for period in range(2, _periods(size))
        for shift in range(period)
        for own in (True, False)
    ]


def _remainders(place: Int[Tensor, " key"], period: int, *, own: bool) -> Int[Tensor, "query key"]:
    """Return, for each query, which shift of a period each key belongs to."""
    ahead = place - place[:, None] if own else place.expand(len(place), -1)
    return ahead % period


def closeness(
    seen: Seen,
    selected: Selected,
    *,
    whole: bool = False,
) -> Float[Tensor, " row"]:
    """Return how close attention is to even attention over the selected keys, row by row.

    Args:
        seen: A head's attention on some rows.
        selected: True for the selected keys.
        whole: Whether queries count whose keys are all selected.

    Returns:
        A number in [0, 1] for each row, 1 for equal; NaN for a row in which no query counts.
    """
    selected = selected & seen.allowed
    count = selected.sum(-1)
    counts = seen.counted & (count > 0) & (whole | (count < seen.allowed.sum(-1)))
    even = selected / count.clamp_min(1)[..., None]
    close = torch.minimum(seen.pattern, even.to(seen.pattern)).sum(-1) * counts
    return (close.sum(1) / counts.sum(1)).double()


def formula(keys: Int[Tensor, " query"], queries: Int[Tensor, " query"]) -> str:
    """Describe in words which key position belongs to each query position i.

    Args:
        keys: The key position of each query.
        queries: The positions of these queries.

    Returns:
        A formula such as ``i − 1``, ``position 0`` or ``i // 2`` if one holds for every query;
        otherwise ``positions`` followed by the key positions. Empty if there are no queries.
    """
    if len(keys) == 0:
        return ""
    first, lag, both = int(keys[0]), int(queries[0] - keys[0]), int(queries[0] + keys[0])
    tried = {
        f"position {first}": torch.full_like(keys, first),
        f"i − {lag}" if lag >= 0 else f"i + {-lag}": queries - lag,
        f"{both} − i": both - queries,
    }
    for step in (2, 3, 4):
        tried |= {f"i // {step}": queries // step}
        tried |= {f"(i − 1) // {step}": (queries - 1) // step}
        tried |= {f"(i − 1) // {step} + 1": (queries - 1) // step + 1}
    simple = [words for words, found in tried.items() if bool((found == keys).all())]
    return simple[0] if simple else "positions " + " ".join(str(key) for key in keys.tolist())


def _whatever(inputs: Tensor, keys: Selected) -> Selected:
    """Return the keys as they are: the mask of a predicate that does not depend on the tokens."""
    return keys


def _relation_keys(inputs: Tensor, words: str) -> Selected:
    found = _RELATIONS[words](inputs[:, :, None], inputs[:, None, :])
    if words == OTHERS:
        found = found & ~torch.eye(inputs.shape[1], dtype=torch.bool)
    return found


def _with_first(inputs: Tensor, selects: Callable[[Tensor], Selected], first: bool) -> Selected:
    found = selects(inputs).clone()
    found[..., 0] = first
    return found
