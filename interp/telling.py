"""What is being done, since when, and about how long it will still take.

    with telling("inspect", every=30.0, say=print_line):   a line every 30 seconds
        step("roles")
        for one in counted(items): …
        count(rows_done, rows)

Elsewhere these calls tell nobody. What is left is estimated from what can be counted: the time
since the first item, over those that are done, times those that are left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_MINUTE = 120
"""From how many seconds on times are told in minutes."""


class Doing:
    """What is being done, and since when.

    Args:
        name: What all of it is called.
        clock: Gives the time in seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self.clock, self._begun = name, clock, clock()
        self.words, self.since = "", self._begun
        self.done, self.of = 0, 0

    def step(self, words: str) -> None:
        """Begin a step."""
        self.words, self.done, self.of = words, 0, 0

    def count(self, done: int, of: int, since: float | None = None) -> None:
        """Say how much of the step is done, and since when it is counted: its first count by
        default."""
        if since is not None or of != self.of:
            self.since = self.clock() if since is None else since
        self.done, self.of = done, of

    def line(self) -> str:
        """What is being done, for how long, and what is left."""
        now, told = self.clock(), [f"{self._name}: {self.words or 'working'}"]
        told += [f"{self.done:,.0f} of {self.of:,.0f} done"] if self.of else []
        told += [f"{_duration(now - self._begun)} so far"]
        if 0 < self.done < self.of and now > self.since:
            left = (now - self.since) / self.done * (self.of - self.done)
            told += [f"about {_duration(left)} left of this"]
        return ", ".join(told)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTE else f"{seconds / 60:.0f} min"


_DOING: ContextVar[Doing | None] = ContextVar("doing", default=None)


@contextmanager
def telling(name: str, say: Callable[[str], None], every: float = 30.0) -> Iterator[Doing]:
    """Say what is being done, again and again while the block runs.

    Args:
        name: What all of it is called.
        say: Called with a line, from a thread of its own.
        every: Seconds between two lines.
    """
    doing, ended = Doing(name), threading.Event()

    def tell() -> None:
        while not ended.wait(every):
            say(doing.line())

    token = _DOING.set(doing)
    threading.Thread(target=tell, daemon=True).start()
    try:
        yield doing
    finally:
        ended.set()
        _DOING.reset(token)


def step(words: str) -> None:
    """Say what is done next."""
    if (doing := _DOING.get()) is not None:
        doing.step(words)


def count(done: int, of: int) -> None:
    """Say how much of the present step is done."""
    if (doing := _DOING.get()) is not None:
        doing.count(done, of)


def count_items(items: Iterable[Any]) -> Iterator[Any]:
    """Go through items, and say how many are done; after a loop inside another the outer count is
    back."""
    every, doing = list(items), _DOING.get()
    if doing is None:
        yield from every
        return
    outer, since = (doing.done, doing.of, doing.since), doing.clock()
    for done, item in enumerate(every):
        doing.count(done, len(every), since)
        yield item
    doing.count(*outer)
