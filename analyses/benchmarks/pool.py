"""Measure many cases in several processes, with a progress bar on a terminal."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import track

__all__ = ["measure_all"]

Case = TypeVar("Case")
Found = TypeVar("Found")


def measure_all(
    measure: Callable[[Case], Found], cases: Sequence[Case], workers: int
) -> Iterator[Found]:
    """Yield what ``measure`` gives for each case, in order, computed by ``workers`` processes."""
    console = Console(stderr=True)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from track(
            pool.map(measure, cases),
            "models",
            total=len(cases),
            console=console,
            disable=not console.is_terminal,
        )
