"""``python -m analyses benchmark``: list the benchmarks, or run one with options of its own."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from prooflens.commands import facts
from prooflens.errors import need

__all__ = ["SETTINGS", "benchmark", "benchmarks"]

SETTINGS: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}
}
"""Settings of the command: options that it does not know are passed on to the benchmark."""

_FOLDER = Path(__file__).parents[1] / "benchmarks"


def benchmarks() -> dict[str, str]:
    """The name of each benchmark, and the first sentence that its file says of it."""
    found = {}
    for file in sorted(_FOLDER.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if any(isinstance(n, ast.FunctionDef) and n.name == "main" for n in tree.body):
            paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            found[file.stem] = " ".join(paragraph.split())
    return found


def benchmark(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Which one; without a name all are listed.")
    ] = None,
) -> None:
    """List the benchmarks, or run one: 'benchmark NAME --help' says what it takes."""
    known = benchmarks()
    if name is None:
        facts(benchmarks=known)
        for one, words in known.items():
            typer.echo(f"{one}\n    {words}")
        return
    rule = f"must be one of {', '.join(known)}"
    need("benchmark", name in known, "NAME", rule, name, "leave it out for what each is")
    main = import_module(f"analyses.benchmarks.{name}").main
    sys.argv = [f"python -m analyses benchmark {name}", *context.args]
    if inspect.signature(main).parameters:
        typer.run(main)
    else:
        main()
