"""Templates as text, and when two of them are the same.

A template is a string such as ``αβα``: small Greek letters are wildcards, every other character is
a regular token that stands for itself (``αβα→``). A substitution maps wildcards injectively to
symbols that are no regular tokens, so two templates can give the same string exactly when they are
equal up to renaming wildcards: :func:`canonical` renames them by first appearance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

from interp.errors import Problems

__all__ = [
    "GREEK",
    "canonical",
    "every_template",
    "is_wildcard",
    "random_templates",
    "regular_tokens",
    "wildcards",
]

GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
_REGULAR = "abcdefghijklmnopqrstuvwxyz"
_ATTEMPTS = 1000


def is_wildcard(character: str) -> bool:
    """Whether a character of a template stands for any symbol."""
    return character in GREEK


def wildcards(template: str) -> tuple[str, ...]:
    """The wildcards of a template, each once, in the order in which they first appear."""
    return tuple(c for c in dict.fromkeys(template) if is_wildcard(c))


def regular_tokens(texts: Sequence[str]) -> tuple[str, ...]:
    """The regular tokens of several templates or labels, each once, sorted by code point."""
    return tuple(sorted(dict.fromkeys(c for text in texts for c in text if not is_wildcard(c))))


def canonical(template: str) -> str:
    """The template with its wildcards renamed α, β, … by first appearance.

    Two templates are equivalent, and give the same strings, iff their canonical forms are equal.
    """
    renamed = dict(zip(wildcards(template), GREEK, strict=False))
    return "".join(renamed.get(c, c) for c in template)


def every_template(length: int) -> tuple[str, ...]:
    """All templates of ``length`` characters that are wildcards alone, in canonical form.

    There are as many as there are partitions of the positions: 2, 5, 15, 52 for lengths 2 to 5.
    """
    found = [""]
    for _ in range(length):
        found = [z + c for z in found for c in GREEK[: len(wildcards(z)) + 1]]
    return tuple(found)


def random_templates(
    count: int, length: int, *, wildcards: int, regular: int = 0, seed: int = 0
) -> tuple[str, ...]:
    """Distinct random templates of one length, none equivalent to another, in canonical form.

    Args:
        count: How many templates to draw.
        length: Characters of each template.
        wildcards: How many different wildcards each has.
        regular: How many positions hold a regular token, drawn from as many different letters.
        seed: Seed of the draw, which is the same on every machine.

    Raises:
        ArgumentError: if wildcards and regular tokens do not fit into the length, or if fewer than
            ``count`` such templates exist.
    """
    problems = Problems("random_templates")
    free, rule = length - regular, "must leave a position for every wildcard"
    fits = 0 <= wildcards <= free and (wildcards > 0 or free == 0)
    problems.need(count >= 1, "count", "must be at least 1", count, "raise it")
    problems.need(fits, "length", rule, (length, wildcards, regular), "lengthen the templates")
    names = wildcards <= len(GREEK) and 0 <= regular <= len(_REGULAR)
    rule = f"must be at most {len(GREEK)} and {len(_REGULAR)}"
    problems.need(names, "wildcards, regular", rule, (wildcards, regular), "use fewer")
    problems.raise_if_any()
    rng = np.random.default_rng([seed, length, wildcards, regular])
    found: dict[str, None] = {}
    for _ in range(_ATTEMPTS * count):
        found[canonical(_draw(length, wildcards, regular, rng))] = None
        if len(found) == count:
            return tuple(found)
    rule = f"must be at most the number of such templates ({len(found)} were found)"
    problems.need(False, "count", rule, count, "ask for fewer or lengthen them")
    problems.raise_if_any()
    return ()


def _draw(length: int, wildcards: int, regular: int, rng: np.random.Generator) -> str:
    """Draw a template with every wildcard at least once and regular tokens at random positions."""
    extra: Iterable[int] = []
    if wildcards:
        extra = rng.integers(wildcards, size=length - regular - wildcards)
    letters = [GREEK[i] for i in (*range(wildcards), *extra)]
    letters += [_REGULAR[i] for i in rng.integers(max(regular, 1), size=regular)]
    order: Int64[np.ndarray, "length"] = rng.permutation(length)
    return "".join(letters[i] for i in order)
