"""Stopping a training between two steps, on Ctrl-C or a termination signal.

    with stop_asked() as asked:
        for step in steps:
            if asked():
                ...                     save, then raise KeyboardInterrupt

A step that is under way is always finished, so that what is saved is a whole step. In other threads
than the main one Python delivers no signals, and nothing ever asks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_asked"]


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Tell whether Ctrl-C or a termination signal came; the step in progress is always finished."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
