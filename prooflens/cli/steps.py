"""Says what a command is doing: on a terminal at once, elsewhere in a line every 30 seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import typer

from interp import telling


def tell_steps(command: str) -> AbstractContextManager[Any]:
    """A block in which is said what the command is doing, unless there is a terminal, where its
    steps and bars are seen."""
    if sys.stderr.isatty():
        return nullcontext()
    return telling.telling(f"prooflens {command}", partial(typer.echo, err=True))


def steps() -> Callable[[str], None]:
    """A function that is told each step before it begins."""
    from rich.console import Console

    console = Console(stderr=True)

    def step(words: str) -> None:
        telling.step(words)
        if console.is_terminal:
            console.print(f"[dim]{words} …[/dim]")

    return step


def progress(what: str) -> Callable[[Any], Any]:
    """A function that goes through items: with a progress bar on a terminal, labelled ``what``;
    elsewhere the lines of the command say how many are done."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        return partial(track, description=what, console=console, transient=True)
    return telling.count_items
