"""What a command computes is kept the first time, so that only its writing is done again.

A test that stops a command after each of its file operations runs it hundreds of times. What is
tested is the writing; a kept function computes when it is called first with given words
and numbers, and gives the same result from then on, in forked children too. Figures are rendered
once, by the name that they are saved under, and their bytes are written from then on.
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from matplotlib.figure import Figure

__all__ = ["keep", "keep_figures"]

_PLAIN = (str, int, float, bool, type(None))


def _key(arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The plain arguments, and the names of those that have one."""
    named = [a if isinstance(a, _PLAIN) else getattr(a, "name", None) for a in arguments]
    told = {name: value for name, value in options.items() if isinstance(value, _PLAIN)}
    return repr(([a for a in named if isinstance(a, _PLAIN)], told))


def _kept(original: Callable[..., Any]) -> Callable[..., Any]:
    found: dict[str, Any] = {}

    def once(*arguments: Any, **options: Any) -> Any:
        key = _key(arguments, options)
        if key not in found:
            found[key] = original(*arguments, **options)
        return found[key]

    return once


def keep(patch: pytest.MonkeyPatch, module: str, *names: str) -> None:
    """Keep the results of a module's functions."""
    place = importlib.import_module(module)
    for name in names:
        patch.setattr(place, name, _kept(getattr(place, name)))


def keep_figures(patch: pytest.MonkeyPatch) -> None:
    """Draw with each of the reports' drawing functions once, and render each file once."""
    original = Figure.savefig
    drawn: dict[str, bytes] = {}

    def once(figure: Figure, file: Any, **options: Any) -> None:
        name = re.sub(r"\.[\w.]*-\d+-\d+-[0-9a-f]{8}\.draft$", "", Path(file).name)
        if name not in drawn:
            original(figure, file, **options)
            drawn[name] = Path(file).read_bytes()
        Path(file).write_bytes(drawn[name])

    patch.setattr(Figure, "savefig", once)
    patch.setattr(Figure, "draw_without_rendering", lambda figure: None)
    for module in [m for name, m in sys.modules.items() if name.startswith("prooflens.pages")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and _draws(value):
                patch.setattr(module, name, _first(value))


def _draws(function: FunctionType) -> bool:
    place = function.__module__
    return place.startswith("interp.figures.") and place != "interp.figures.style"


def _first(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Which figure it is makes no difference: its file's bytes are kept by name."""
    found: list[Any] = []

    def once(*arguments: Any, **options: Any) -> Any:
        if not found:
            found.append(draw(*arguments, **options))
        return found[0]

    return once
