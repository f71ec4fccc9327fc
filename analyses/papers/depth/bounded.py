"""Claim: programs a count short of L_k's prediction, with small numbers, err on some short string.

A program without positions knows of a prefix only what its comparisons tell. So prefixes fall into
classes, level by level, and a formula of depth d is the same on all prefixes of a class:

    level 1    the last letter, and which comparisons u #a + v #b ≥ c hold, |u|, |v|, |c| ≤ B_1
    level d    the class at level d − 1, and of how many of the prefix's positions each class of
               level d − 1 is, told up to B_d

Two prefixes of one class, of which one has the last block of L_k begun and the other has not, are a
certificate: no program of depth d whose numbers are within (B_1, …, B_d) is right on both, however
many formulas it has. Within B_d, comparisons over formulas of depth d − 1 are of one count against
a constant of at most B_d; where B_d is 0 there is no bound, and any linear comparison is allowed.
Choices, minima and maxima count as the cases that they stand for. Programs that count both sides,
have guards or read positions are not among these.

The search is over all prefixes of strings of L_k up to a length, so that it is exhaustive: where it
finds no pair, these lengths exclude no program, which does not say that there is one. Nothing is
said of larger numbers; that depth alone is too little for any numbers is the paper's theorem, which
needs strings of every length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from prooflens.crasp import block_symbol
from prooflens.errors import Problems

__all__ = ["Pair", "check", "prefix_class", "run", "shortest_pair"]

Bounds = tuple[int, ...]
"""The largest number of each level's comparisons, the innermost first; 0 for any."""

_LETTERS = ("a", "b")
_NEEDED = ((4, (0,)), (5, (2, 0)), (6, (1, 3, 0)))


@dataclass(frozen=True)
class Pair:
    """Two prefixes of one class that need different answers.

    Attributes:
        before: Its last block has not begun.
        begun: Its last block has begun.
    """

    before: str
    begun: str

    @property
    def length(self) -> int:
        """The symbols of the longer one."""
        return max(len(self.before), len(self.begun))


def check(setting: Setting) -> None:
    """Refuse fragments that are none, and lengths at which L_k has no strings.

    Raises:
        ArgumentError: for such ``fragments`` or ``longest``.
    """
    problems, given = Problems("claims run"), setting.options["fragments"]
    good = all(len(one) == one[0] - 2 >= 2 and min(one[1:]) >= 0 for one in given)
    rule = "must list k and its k − 3 bounds, 0 for none"
    problems.need(good, "--option fragments", rule, given, "write [[5, 2, 0]]")
    longest, most = setting.options["longest"], max((one[0] for one in given), default=0)
    rule = f"must be at least {most}, the blocks of the longest language"
    problems.need(longest >= most, "--option longest", rule, longest, "raise it")
    problems.raise_if_any()


def run(setting: Setting) -> Verdict:
    """Search for the pairs (ledger: ``depth-bounded-programs``).

    Options: ``fragments``, lists of k and its bounds; ``longest`` string in symbols.
    """
    longest, rows = setting.options["longest"], []
    for k, *numbers in setting.options["fragments"]:
        bounds = tuple(numbers)
        pair = shortest_pair(k, bounds, longest)
        rows.append(
            {
                "language": f"L_{k}, depth {k - 3}",
                "fragment": f"L_{k}: " + ", ".join(str(bound or "any") for bound in bounds),
                "k": k,
                "bounds": bounds,
                "before": pair.before if pair else "",
                "begun": pair.begun if pair else "",
                "length": pair.length if pair else float("nan"),
                "checked": pair is not None and _is_certified(pair, bounds),
            }
        )
    table = pd.DataFrame(rows)
    held = {(row["k"], row["bounds"]) for row in rows if row["checked"]}
    all_checked = all(row["checked"] for row in rows if row["before"])
    short = [one for one in _NEEDED if one in held]
    words = (
        f"Of {len(rows)} fragments {len(held)} have two strings of at most {longest} symbols that "
        "no program of k − 3 counts tells apart and that need different answers"
        + "".join(
            f"; {row['fragment']}: {row['before']} and {row['begun']}"
            for row in rows
            if (row["k"], row["bounds"]) in short
        )
        + "."
    )
    figure = strips(
        table,
        group="fragment",
        y="length",
        by="language",
        label="symbols of the shortest pair (no dot: none)",
    )
    seen = (
        "For every fragment, by its bounds from the innermost count outwards, how long its pair is."
    )
    numbers = {"pairs": table.drop(columns="language").to_dict("records")}
    return Verdict(
        decide(all_checked and len(short) == len(_NEEDED), bool(short) and all_checked),
        words,
        f"{len(held)} of {len(rows)} fragments excluded within {longest} symbols",
        numbers,
        {"pairs": table},
        {"pairs": Drawing(figure, seen)},
    )


def shortest_pair(k: int, bounds: Bounds, longest: int) -> Pair | None:
    """The shortest two prefixes of strings of L_k, up to a length, of one class and not one answer.

    Args:
        k: The number of blocks.
        bounds: The largest number of each level.
        longest: The most symbols of a string of L_k.
    """
    found: list[Pair] = []
    known: dict[Any, dict[bool, str]] = {}
    for prefix, blocks, key in _prefixes(k, bounds, longest):
        alike = known.setdefault(key, {})
        if (blocks == k) not in alike:
            alike[blocks == k] = prefix
            if len(alike) == 2:
                found.append(Pair(alike[False], alike[True]))
    return min(found, key=lambda pair: (pair.length, pair.before, pair.begun), default=None)


def _prefixes(k: int, bounds: Bounds, longest: int) -> Iterator[tuple[str, int, Any]]:
    """Every prefix of a string of L_k, the shorter first: symbols, blocks begun, and its class."""
    numbers: dict[Any, int] = {}
    level = [("", 0, tuple(Counter[int]() for _ in bounds[1:]))]
    while level:
        longer = []
        for prefix, blocks, counts in level:
            for more in (0, 1):
                if not 1 <= blocks + more <= k or len(prefix) + 1 + k - blocks - more > longest:
                    continue
                grown = prefix + block_symbol(blocks + more)
                key: Any = _innermost(grown, bounds[0])
                now = []
                for held, bound in zip(counts, bounds[1:], strict=True):
                    number = numbers.setdefault(key, len(numbers))
                    now.append(_with_one_more(held, number, bound))
                    key = (number, frozenset(now[-1].items()))
                yield grown, blocks + more, key
                longer.append((grown, blocks + more, tuple(now)))
        level = longer


def _with_one_more(counts: Mapping[int, int], number: int, bound: int) -> Counter[int]:
    grown = Counter(counts)
    grown[number] = min(grown[number] + 1, bound or grown[number] + 1)
    return grown


def _innermost(prefix: str, bound: int) -> tuple[Any, ...]:
    """The last letter, and what comparisons of the letters' counts tell."""
    a, b = (prefix.count(letter) for letter in _LETTERS)
    if not bound:
        return (prefix[-1], a, b)
    signs = range(-bound, bound + 1)
    values = (u * a + v * b for u, v in product(signs, repeat=2))
    return (prefix[-1], *(min(max(value, -bound - 1), bound) for value in values))


def _is_certified(pair: Pair, bounds: Bounds) -> bool:
    """Whether both prefixes are of one class, and one has a block more of the last letter."""
    return prefix_class(pair.before, bounds) == prefix_class(pair.begun, bounds)


def prefix_class(prefix: str, bounds: Sequence[int]) -> tuple[Any, ...]:
    """All that programs within the bounds can tell of a prefix, written out, to check a pair by.

    Args:
        prefix: Symbols ``a`` and ``b``.
        bounds: The largest number of each level; 0 for any.
    """
    if len(bounds) == 1:
        return _innermost(prefix, bounds[0])
    *inner, bound = bounds
    views = [prefix_class(prefix[:end], inner) for end in range(1, len(prefix) + 1)]
    counts = {one: min(number, bound or number) for one, number in Counter(views).items()}
    return (views[-1], frozenset(counts.items()))
