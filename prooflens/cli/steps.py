"""Tell the user what a command is doing: on a terminal at once, elsewhere in a line every 30
seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import typer

from interp import telling


def tell_steps(command: str) -> AbstractContextManager[Any]:
    """Return a context in which lines say every 30 seconds what the command is doing.

    On a terminal nothing is printed, because its steps and progress bars are visible there.
    """
    if sys.stderr.isatty():
        return nullcontext()
    return telling.telling(f"prooflens {command}", partial(typer.echo, err=True))


def steps() -> Callable[[str], None]:
    """Return a function that is called with each step before it begins."""
    from rich.console import Console

    console = Console(stderr=True)

    def step(words: str) -> None:
        telling.step(words)
        if console.is_terminal:
            console.print(f"[dim]{words} …[/dim]")

    return step


def progress(what: str) -> Callable[[Any], Any]:
    """Return a function that wraps a loop: with a progress bar labelled ``what`` on a terminal;
    elsewhere the command's lines say how many items are done."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        return partial(track, description=what, console=console, transient=True)
    return telling.count_items
