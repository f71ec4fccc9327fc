"""Progress messages: what is being done, since when, and about how long it will still take.

    with telling("inspect", every=30.0, say=print_line):   a line every 30 seconds
        step("roles")
        for one in count_items(items): …
        count(rows_done, rows)

Outside of such a block these calls do nothing. The remaining time is estimated from what is
counted: the time since the first item, divided by the number of finished items, times the number of
remaining ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_MINUTE = 120
"""Number of seconds from which a duration is given in minutes. Shorter durations are given in
seconds."""


class Doing:
    """The current work, and since when it has been running.

    Args:
        name: The name of the whole work.
        clock: A function that returns the time in seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self.clock, self._begun = name, clock, clock()
        self.words, self.since = "", self._begun
        self.done, self.of = 0, 0

    def step(self, words: str) -> None:
        """Begin a step."""
        self.words, self.done, self.of = words, 0, 0

    def count(self, done: int, of: int, since: float | None = None) -> None:
        """Record how much of the step is done.

        Args:
            done: The number of finished items.
            of: The number of all items.
            since: When counting began; by default the time of the first count.
        """
        if since is not None or of != self.of:
            self.since = self.clock() if since is None else since
        self.done, self.of = done, of

    def line(self) -> str:
        """Return a line with what is being done, for how long, and about how long is left."""
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
    """Report what is being done at regular intervals while the ``with`` block runs.

    Args:
        name: The name of the whole work.
        say: A function that is called with each line, from another thread.
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
    """Record the step that begins now."""
    if (doing := _DOING.get()) is not None:
        doing.step(words)


def count(done: int, of: int) -> None:
    """Record how much of the present step is done."""
    if (doing := _DOING.get()) is not None:
        doing.count(done, of)


def count_items(items: Iterable[Any]) -> Iterator[Any]:
    """Iterate over items and record how many are done; after an inner loop, restore the outer
    loop's count."""
    every, doing = list(items), _DOING.get()
    if doing is None:
        yield from every
        return
    outer, since = (doing.done, doing.of, doing.since), doing.clock()
    for done, item in enumerate(every):
        doing.count(done, len(every), since)
        yield item
    doing.count(*outer)
