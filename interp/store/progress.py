"""Show the progress of an extraction (rows per second, bytes, time left), if there is a
terminal."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from interp.store.plan import Plan


class Progress:
    """A progress bar on standard error while rows are computed.

    Args:
        plan: says how many rows there will be and how large one is.
        done: index entries of the parts that exist already.
    """

    def __init__(self, plan: Plan, done: Mapping[int, Mapping[str, Any]]) -> None:
        console = Console(stderr=True)
        self._row_bytes = plan.row_bytes
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} rows"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        already = sum(entry["n"] for entry in done.values())
        self._task = self._bar.add_task("extract", total=plan.rows, completed=already, rate="")

    def advance(self, rows: int) -> None:
        """Add rows that were computed."""
        task = self._bar.tasks[self._task]
        speed = task.speed or 0.0
        written = (task.completed + rows) * self._row_bytes / 1e6
        rate = f"{speed:,.1f} rows/s  {written:,.0f} MB"
        self._bar.update(self._task, advance=rows, rate=rate)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
