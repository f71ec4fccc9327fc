"""The usage line of a command: what must be given as MODEL, what may be as [MODEL].

Typer writes {model} for the first, which no shell user reads as a name to replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

__all__ = ["App", "Command"]


class Command(TyperCommand):
    """A command whose usage line has capitals and no braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command's name."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "").upper() for piece in pieces]


class App(typer.Typer):
    """A Typer whose commands are such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """As Typer's, which see."""
        return super().command(name, **({"cls": Command} | options))
