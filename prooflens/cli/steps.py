"""Says on a terminal what is being done; silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console


def steps() -> Callable[[str], None]:
    """A function that is told each step before it begins."""
    console = Console(stderr=True)

    def step(words: str) -> None:
        if console.is_terminal:
            console.print(f"[dim]{words} …[/dim]")

    return step
