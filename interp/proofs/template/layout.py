"""What a template construction stores where: the bits that it reads, and its residual coordinates.

A string's *bits* say everything a template fixes: ``equal t j``, does position t hold the token of
position j < t, and ``token t v``, does it hold the regular token v. The readout compares them with
each template's. Two layers give the bits of all positions, one layer only those of the last row:
it suffices iff the answers are a function of that row (`template` §2.3; ``ααβ`` and ``αγβ``
collide).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from interp.tasks.template import TemplateTask
from interp.tasks.template.text import regular_tokens

__all__ = ["Bit", "Key", "Slots", "bits", "collision", "keys", "outcome"]

Outcome = float | int | str
"""A template's answer: a number, a position to copy from, or a token that stands nowhere in it."""


@dataclass(frozen=True)
class Bit:
    """One yes or no about a string: position ``t`` equals position ``j``, or holds ``token``."""

    t: int
    j: int | None = None
    token: str | None = None

    @property
    def name(self) -> str:
        """The bit's name, e.g. ``equality[3,1]`` or ``token[0,x]``."""
        return (
            f"equality[{self.t},{self.j}]"
            if self.token is None
            else f"token[{self.t},{self.token}]"
        )

    def holds(self, template: str) -> bool:
        """The bit's value on every string of a template."""
        if self.token is not None:
            return template[self.t] == self.token
        return self.j is not None and template[self.t] == template[self.j]


@dataclass(frozen=True)
class Key:
    """A pattern of bits that one ramp of the readout detects, and the answer that follows from
    it."""

    pattern: tuple[bool, ...]
    outcome: Outcome


def bits(task: TemplateTask, layers: int) -> tuple[Bit, ...]:
    """The bits that are available to a readout after one or two layers of attention."""
    last = task.length - 1
    rows = range(task.length) if layers == 2 else (last,)
    equal = [Bit(t, j) for t in rows for j in range(t)]
    tokens = regular_tokens(task.templates)
    return (*equal, *(Bit(t, token=v) for t in range(task.length) for v in tokens))


def outcome(task: TemplateTask, template: int) -> Outcome:
    """A template's answer: its number, source position, or (where no position holds the label)
    token."""
    label = task.labels[template]
    if not isinstance(label, str):
        return float(label)
    source = task.source(template)
    return source if source >= 0 else label


def keys(task: TemplateTask, asked: tuple[Bit, ...]) -> tuple[Key, ...]:
    """One key for each pattern of bits; templates with equal patterns share one."""
    found = {p: outcome(task, i) for p, i in _patterns(task, asked)}
    return tuple(Key(pattern, found[pattern]) for pattern in found)


def collision(task: TemplateTask, asked: tuple[Bit, ...]) -> tuple[str, str] | None:
    """Two templates that the bits do not tell apart although their answers differ; None if none
    do."""
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
    """Hands out coordinates of the residual stream in order."""

    def __init__(self) -> None:
        self.width = 0

    def take(self, count: int) -> slice:
        """Take the next ``count`` coordinates."""
        self.width += count
        return slice(self.width - count, self.width)
