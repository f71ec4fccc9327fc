"""Write in a background thread, at a pace that keeps out of the way of computing.

:class:`Background` runs calls in order in one thread, at most a few ahead of the caller, so that
disk and compute overlap while memory stays bounded. :class:`Pace` keeps two such threads in
step. Worth it only for calls that release Python's lock, as HDF5, ``fsync`` and SHA-256 do.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

__all__ = ["Background", "Pace"]

_REST = 0.05


class Background:
    """Runs calls in order in one thread, at most ``ahead`` of them waiting.

    An exception of a call is raised by the next :meth:`submit` or :meth:`finish`; calls queued
    behind it are not run. Leaving the ``with`` block, by an exception too, waits for those that
    are queued: what was computed is not lost.

    Args:
        ahead: how many calls may wait.
        on_exit: called before the thread is joined at the end of the ``with`` block.
    """

    def __init__(self, ahead: int, on_exit: Callable[[], None] | None = None) -> None:
        self._on_exit = on_exit
        self._calls: queue.Queue[tuple[Callable[..., object], Sequence[Any]] | None]
        self._calls = queue.Queue(maxsize=ahead)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="prooflens-writer", daemon=True)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._error is not None:
                continue
            function, arguments = call
            try:
                function(*arguments)
            except BaseException as error:  # handed to the caller's thread
                self._error = error
            del call, function, arguments

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Queue a call; wait while the queue is full.

        Raises:
            BaseException: whatever an earlier call raised.
        """
        self._raise()
        self._calls.put((function, arguments))

    def finish(self) -> None:
        """Wait until every queued call is done.

        Raises:
            BaseException: whatever a call raised.
        """
        self._stop()
        self._raise()

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._calls.put(None)
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on_exit is not None:
            self._on_exit()
        self._stop()


class Pace:
    """Keeps one thread's reading in step with another's writing.

    A forward pass that fills all cores waits for its slowest thread, so two short jobs beside it
    cost half as much at the same time as one after the other: hashing a sealed file goes on
    while the next one is written, and rests meanwhile. It never rests longer than a moment at a
    time, so that nothing depends on there being a next file.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes = 0
        self._free = False

    def wrote(self, n: int) -> None:
        """Allow the other thread to read as many bytes as were written."""
        with self._changed:
            self._bytes += n
            self._changed.notify_all()

    def reading(self, n: int) -> None:
        """Wait a moment unless enough bytes were written in the meantime."""
        with self._changed:
            if self._bytes <= 0 and not self._free:
                self._changed.wait(_REST)
            self._bytes = max(0, self._bytes - n)

    def finish(self) -> None:
        """Declare that nothing more is written, so that reading no longer waits."""
        with self._changed:
            self._free = True
            self._changed.notify_all()
